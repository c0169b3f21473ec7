"""A round, step by step: who is there, messages out, replies in, tests."""
