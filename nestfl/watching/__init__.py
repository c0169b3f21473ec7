"""Shows the progress of a run."""
