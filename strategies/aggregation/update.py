"""What a client's reply is to an aggregator."""

from __future__ import annotations

from dataclasses import dataclass, field

from models.slicing import Slice, SliceMap, State


class RefusedUpdateError(ValueError):
    """An update that cannot be used; whoever refused it is as it was before."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Update:
    """The state that a client has trained, where it lies in the global one, and what it counts."""

    state: State
    map: SliceMap
    weight: float = 1.0
    client: int | None = None
    """Who it is of, for aggregators that tell clients apart."""
    slice: Slice = field(default_factory=Slice)
    """What it is a state of, for those that run the network."""
    level: int = 1
    """The number of its level, for those that compare clients of one."""
    start: State = field(default_factory=dict)
    """The global state that the slice was cut from, for those that look at what has changed."""

    def check_form(self) -> None:
        """Raise `RefusedUpdateError` for other names, shapes or types than the slice has."""
        state, regions = self.state, self.map.regions
        missing = sorted(regions.keys() - state.keys())
        extra = sorted(state.keys() - regions.keys())
        if missing or extra:
            raise RefusedUpdateError("names", f"missing {missing}, not expected {extra}")
        for name, region in regions.items():
            if tuple(state[name].shape) != region.shape:
                found = tuple(state[name].shape)
                raise RefusedUpdateError("shape", f"{name} is {found}, expected {region.shape}")
            if state[name].dtype != region.dtype:
                raise RefusedUpdateError(
                    "dtype", f"{name} is {state[name].dtype}, expected {region.dtype}"
                )
