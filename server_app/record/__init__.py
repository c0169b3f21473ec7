"""Writes the record of a run: a directory with config, metrics, checkpoints and summary."""
