"""Gradient variances (CIS, Appendix C): by hand, and without a trace in the network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from models import Slice, SlicedNetwork, build
from strategies.methods.serving_rate.gradient_variances import gradient_variances
from tests.support.toy_training import CPU, digits

SETTINGS = replace(CPU, batch_size=8)


def network() -> SlicedNetwork:
    torch.manual_seed(0)
    return build("resnet20", 10, 1, Slice(exits=(3, 9)), norm="bn-running", head="pool")


def test_it_is_the_mean_variance_of_all_entries_on_the_way_to_an_exit() -> None:
    """Computed here from all gradients at once, with torch's own variance."""
    net, data = network(), digits(40)
    found = gradient_variances(net, data, SETTINGS, exits=2, seed=3)
    net.train()
    for number in range(2):
        gradients = []
        for inputs, labels in data.batches(
            8, shuffle=True, generator=torch.Generator().manual_seed(3)
        ):
            net.zero_grad()
            F.cross_entropy(net(inputs)[number], labels).backward()
            own = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
            gradients.append(torch.cat(own).double())
        expected = torch.stack(gradients).var(0).mean()
        assert found[number] == pytest.approx(float(expected), rel=1e-3)


def test_the_network_is_as_before_and_the_answer_the_same() -> None:
    net = network()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    found = [gradient_variances(net, digits(20), SETTINGS, 2, seed=1) for _ in range(2)]
    assert found[0] == found[1]
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_dropout_draws_from_the_seed() -> None:
    net = build("vit-micro", 10, 1, Slice(exits=(2, 4)), dropout=0.5)
    first = gradient_variances(net, digits(16), SETTINGS, 2, seed=1)
    torch.rand(3)
    assert gradient_variances(net, digits(16), SETTINGS, 2, seed=1) == first


def test_no_more_batches_are_taken_than_asked_for() -> None:
    net, data = network(), digits(80)
    few = gradient_variances(net, data, SETTINGS, 1, seed=1, most=3)
    assert few != gradient_variances(net, data, SETTINGS, 1, seed=1)
    assert few == gradient_variances(net, data, SETTINGS, 1, seed=1, most=3)


def test_one_batch_has_no_variance() -> None:
    with pytest.raises(ValueError, match="15 examples in batches of 8: expected 2 batches"):
        gradient_variances(network(), digits(15), SETTINGS, 1, seed=1)
