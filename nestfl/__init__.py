"""The command line: `nestfl plan`, `nestfl run`, `nestfl predict`."""
