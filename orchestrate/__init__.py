"""Does things: Click in, Fabric and Docker out. The only package that opens a socket, runs a process or prints."""
