"""What the server runs: its configuration, the rounds, and the record of a run."""
