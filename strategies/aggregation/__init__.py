"""What becomes of a round's replies: the mean of what overlaps, bounds of an update, defences."""
