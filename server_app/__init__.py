"""Holds the server's side of a run: its configuration, its rounds, and its record."""
