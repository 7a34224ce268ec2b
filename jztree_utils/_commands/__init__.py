"""The command line: its arguments, and the work behind it, a module a command."""
