"""Training and tests, as used by server and clients: loop, losses, optimisers, devices."""
