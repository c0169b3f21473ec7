"""For all tests: one thread a worker, and no deadline for an example, since machines are shared."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from hypothesis import settings

settings.register_profile("nestfl", deadline=None)
settings.load_profile("nestfl")
