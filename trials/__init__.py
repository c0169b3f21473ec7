"""Tries faults, attacks and mutations on real deployments."""
