"""The slices of a run: their plan, their cost, and their place in the global state."""
