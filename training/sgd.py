"""Stochastic gradient descent without the seconds that `torch.optim.SGD` takes to start."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from protocol.train_settings import TrainSettings


class SGD:
    """`torch.optim.SGD`, number by number, on torch's own functional form.

    The first torch optimiser of a process imports the compiler, which took 2.8 s here: more than
    the rest of torch, and a deployed client is a new process for every message.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, settings: TrainSettings):
        self.parameters = list(parameters)
        self.param_groups = [{"params": self.parameters}]  # what torch's GradScaler reads
        self.lr, self.settings = lr, settings
        self.momenta: dict[nn.Parameter, Tensor | None] = {}

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
            lr=self.lr,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
            nesterov=self.settings.nesterov,
            dampening=0,
            maximize=False,
            foreach=True,
        )
        self.momenta.update(zip(moved, momenta, strict=True))
