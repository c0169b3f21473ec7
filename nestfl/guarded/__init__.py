"""Flower's processes, with locks that Flower has not: who may ask, and whose code runs here.

Nothing of nestfl's other packages is imported: the code that a run brings has the same names.
"""
