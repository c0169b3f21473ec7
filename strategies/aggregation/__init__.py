"""Aggregates a round's replies: the mean of what overlaps, bounds of updates, defences."""
