"""Attacks by hand: labels that change places, and updates that are larger than they were."""

from __future__ import annotations

import torch

from client_app.attacks import amplified, poisoned
from protocol.attack import Sabotage
from tests.support.toy_training import digits


def test_shuffled_labels_are_the_same_labels_in_other_places_and_the_same_in_every_round() -> None:
    data = digits(50)
    shuffled, again = (poisoned(data, Sabotage(labels=7)) for _ in range(2))
    assert shuffled.labels.sort().values.equal(data.labels.sort().values)
    assert not shuffled.labels.equal(data.labels)
    assert shuffled.labels.equal(again.labels)
    assert not shuffled.labels.equal(poisoned(data, Sabotage(labels=8)).labels)
    assert [inputs.equal(plain) for (inputs, _), (plain, _) in
            zip(shuffled.batches(20), data.batches(20), strict=True)] == [True] * 3  # fmt: skip


def test_an_attacker_that_only_amplifies_trains_on_its_own_labels() -> None:
    data = digits(50)
    assert poisoned(data, Sabotage(strength=20)) is data


def test_an_update_of_strength_20_is_20_times_as_far_and_counters_are_as_trained() -> None:
    sent = {"w": torch.tensor([1.0, -2.0]), "running_mean": torch.tensor([0.5]),
            "num_batches_tracked": torch.tensor(3)}  # fmt: skip
    trained = {"w": torch.tensor([1.5, -2.25]), "running_mean": torch.tensor([0.25]),
               "num_batches_tracked": torch.tensor(9)}  # fmt: skip
    reply = amplified(trained, sent, Sabotage(strength=20))
    assert reply["w"].tolist() == [11.0, -7.0]
    assert reply["running_mean"].tolist() == [-4.5]
    assert reply["num_batches_tracked"] == 9
    assert list(reply) == list(trained)
    assert trained["w"].tolist() == [1.5, -2.25]


def test_an_update_of_strength_1_is_what_was_trained_bit_for_bit() -> None:
    chance = torch.Generator().manual_seed(0)
    sent = {"w": torch.randn(1000, generator=chance)}
    trained = {"w": torch.randn(1000, generator=chance) * 1e-9}
    assert amplified(trained, sent, Sabotage())["w"].equal(trained["w"])


def test_a_variance_does_not_fall_below_0() -> None:
    reply = amplified(
        {"bn.running_var": torch.tensor([0.9, 1.1])},
        {"bn.running_var": torch.tensor([1.0, 1.0])},
        Sabotage(strength=20),
    )
    assert torch.allclose(reply["bn.running_var"], torch.tensor([0.0, 3.0]))
