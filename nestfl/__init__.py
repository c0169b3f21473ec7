"""The command line: `nestfl plan`."""
