"""HeteroFL (Diao et al., 2021): levels of width, with static batch norm and a masked loss.

Its levels are the plan's; its norm, its scaler and its loss are the model's and the objective's
(conf/strategy/heterofl.yaml). What clients gather for its norm is strategies/statistics.py.
"""

from __future__ import annotations

from strategies.base import NestedStrategy


class HeteroFL(NestedStrategy):
    pass
