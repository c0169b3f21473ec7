"""The record that a run leaves: its directory with config, metrics, checkpoints and summary."""
