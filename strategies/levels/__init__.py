"""Which slices there are, what they cost, and where they lie in the global state."""
