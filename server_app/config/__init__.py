"""Composes and checks a run's configuration from conf/ and overrides."""
