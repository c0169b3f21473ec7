"""Showing how a run goes on."""
