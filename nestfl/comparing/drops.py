"""Computes accuracy drops: the share of its accuracy that a method loses under an attack.

Runs are paired over seeds: two runs of the same choices and seed, with an attack and without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nestfl.comparing.results import FULL_MODEL, Group
from nestfl.comparing.trials import same_value

ATTACK = "fleet.attack."
KIND, SHARE = f"{ATTACK}kind", f"{ATTACK}share"
DROPPING = ("mean", "worst", FULL_MODEL, "personal")
"""The scores whose drops are reported."""


@dataclass(frozen=True)
class Drop:
    """A score without an attack and under it, by the seeds that have both."""

    clean: Mapping[str | None, float]
    attacked: Mapping[str | None, float]

    @property
    def by_seed(self) -> dict[str | None, float]:
        """The accuracy drop of FedFA's Table 1: (clean - attacked) / clean."""
        return {
            seed: (self.clean[seed] - score) / self.clean[seed]
            for seed, score in self.attacked.items()
        }


def drops_of(group: Group, groups: Sequence[Group]) -> dict[str, Drop]:
    """Return the drops of a group's scores under its attack; empty without a pair of runs."""
    clean = _without_attack(group, groups)
    if clean is None:
        return {}
    found = {}
    for score in DROPPING:
        before, after = clean.values(score), group.values(score)
        seeds = [seed for seed in after if before.get(seed)]  # a score of 0 cannot drop
        if seeds:
            found[score] = Drop({s: before[s] for s in seeds}, {s: after[s] for s in seeds})
    return found


def _without_attack(group: Group, groups: Sequence[Group]) -> Group | None:
    """Return the group that differs only in having no attack; None if this group has none."""
    if not _is_attacked(group.choices):
        return None
    others = _besides_attack(group.choices)
    return next(
        (
            each
            for each in groups
            if _besides_attack(each.choices) == others and not _is_attacked(each.choices)
        ),
        None,
    )


def _is_attacked(choices: Mapping[str, str]) -> bool:
    """Return whether choices include an attack; without any, all runs have the same."""
    nobody = choices.get(KIND) == "none" or same_value(choices.get(SHARE, "1"), "0")
    return any(key.startswith(ATTACK) for key in choices) and not nobody


def _besides_attack(choices: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in choices.items() if not key.startswith(ATTACK)}
