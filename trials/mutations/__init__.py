"""Puts small faults into the source, one at a time, and checks that its tests notice them."""
