"""Stochastic gradient descent without the seconds that `torch.optim.SGD` takes to start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from protocol.train_settings import TrainSettings


class SGD:
    """`torch.optim.SGD`, number by number, on torch's own functional form.

    The first torch optimiser of a process imports the compiler, which took 2.8 s here: more than
    the rest of torch, and a deployed client is a new process for every message.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, settings: TrainSettings):
        """Take what is to be moved. Tensors that share memory share their momentum, entry by entry.

        Of these only the ones that have a gradient in a step are moved by it.
        """
        self.parameters = list(parameters)
        # What torch's GradScaler reads.
        self.param_groups: list[dict[str, Any]] = [{"params": self.parameters, "lr": lr}]
        self.settings = settings
        shared = _shared_momenta(self.parameters) if settings.momentum else {}
        self.momenta: dict[Tensor, Tensor | None] = shared

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter that has a gradient."""
        gradients = {p: p.grad for p in self.parameters if p.grad is not None}
        moved = list(gradients)
        momenta = [self.momenta.get(parameter) for parameter in moved]
        sgd(
            list[Tensor](moved),
            list(gradients.values()),
            momenta,
            lr=self.param_groups[0]["lr"],
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
            nesterov=self.settings.nesterov,
            dampening=0,
            maximize=False,
            foreach=True,
        )
        self.momenta.update(zip(moved, momenta, strict=True))


def _shared_momenta(parameters: Sequence[Tensor]) -> dict[Tensor, Tensor | None]:
    """Return parts of the same zeros for tensors that are parts of the same memory."""
    users: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        users.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)
    momenta: dict[Tensor, Tensor | None] = {}
    for sharing in users.values():
        if len(sharing) > 1:
            entries = sharing[0].untyped_storage().nbytes() // sharing[0].element_size()
            zeros = sharing[0].new_zeros(entries)
            for each in sharing:
                place = (each.size(), each.stride(), each.storage_offset())
                momenta[each] = zeros.as_strided(*place)
    return momenta
