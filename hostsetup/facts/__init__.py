"""One file per subsystem of a host: what is asked, what it means, and how its text is read. Judges nothing."""
