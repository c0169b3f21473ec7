"""Runs Flower's processes with two locks that Flower lacks: on their callers, and on the code.

This package imports nothing of nestfl's others, since a run's code has modules of the same names.
"""
