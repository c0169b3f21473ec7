"""Starting Flower, and ending all of it."""
