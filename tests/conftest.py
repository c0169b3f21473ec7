"""For all tests: no deadline for an example, since machines are shared."""

from hypothesis import settings

settings.register_profile("nestfl", deadline=None)
settings.load_profile("nestfl")
