"""Nodes that answer requests together, each with its part of a network (`docs/serving.md`)."""
