"""Starts Flower for a run, and ends all of its processes."""
