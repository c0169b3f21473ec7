"""Comparing methods: many runs, what is fair between them, and what can be said of the results."""
