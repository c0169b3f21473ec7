"""How the server plans, assigns and averages slices."""
