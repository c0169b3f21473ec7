"""Compares methods over many runs: equal conditions, result tables, and paired differences."""
