"""Trials of a deployment: faults, attackers and mutations, each tried for real."""
