"""ScaleFL (Ilhan et al., CVPR 2023): levels of depth and width, distilled from the last exit.

The split of Eq. (1) is the plan's, the aggregation of Algorithm 3 is the base's nested mean, and
the loss of Eq. (5) is the objective `self-distillation` (conf/strategy/scalefl.yaml). What is its
own: a level holds and trains the exits of the levels below it, and clients may keep other
channels than the first.
"""

from __future__ import annotations

import numpy as np

from models import Window
from strategies.base import NestedStrategy


class ScaleFL(NestedStrategy):
    trains_early_exits = True

    def window_of(self, client: int) -> Window:
        """The upper left by default; a random window is another one for each client, for good."""
        kind, seed = self.federation.window_kind, self.federation.seed
        if kind != "random":
            return Window(kind)
        return Window(kind, int(np.random.default_rng((seed, client)).integers(2**31)))
