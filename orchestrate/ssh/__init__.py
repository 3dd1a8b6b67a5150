"""What ssh(1) would do to reach a host: its configuration, its known hosts, its keys, its failures. Prompts for nothing."""
