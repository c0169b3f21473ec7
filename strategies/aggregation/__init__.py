"""What becomes of a round's replies: the mean of what overlaps, and the bounds of an update."""
