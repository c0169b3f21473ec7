"""Simulated clients share GPUs by the memory of training, and never more than there is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestfl.launching import request as request_module
from nestfl.launching.gpus import (
    CUDA_CONTEXT,
    MOST_CLIENTS,
    clients_per_gpu,
    default_share,
    device_of,
    share_of_a_gpu,
    training_memory,
)
from nestfl.launching.request import Request, simulation_of
from server_app.config.composing import compose
from tests.support.federations import federate_in

GB = 10**9


@given(
    st.lists(st.integers(0, 200 * GB), min_size=1, max_size=16),
    st.integers(GB // 2, 100 * GB),
    st.integers(1, 256),
)
def test_memory_is_never_oversubscribed(free: list[int], needed: int, at_once: int) -> None:
    clients = clients_per_gpu(free, needed, at_once)
    assert 0 <= clients <= MOST_CLIENTS
    if clients:
        assert (clients + 1) * needed <= min(free)  # one for the server
        assert (clients - 1) * len(free) < at_once  # none has less than it could


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8, 16])
def test_ray_and_flower_place_as_many_clients_as_share_a_gpu(gpus: int) -> None:
    for clients in range(1, MOST_CLIENTS + 1):
        share = share_of_a_gpu(clients)
        assert 10_000 // round(share * 10_000) == clients  # Ray, on each GPU
        assert int(gpus / share) == clients * gpus  # Flower's pool_size_from_resources


def test_a_larger_network_or_batch_leaves_room_for_fewer() -> None:
    small, large, wide = (
        training_memory(compose(overrides))
        for overrides in ("", "train.batch_size=512", "model=resnet110 train.batch_size=512")
    )
    assert CUDA_CONTEXT < small < large < wide
    assert clients_per_gpu([24 * GB], small, 64) > clients_per_gpu([24 * GB], wide, 64) > 0


def never(*_: Any) -> Any:
    raise AssertionError("nobody wants to know")


@pytest.mark.parametrize(
    ("request_made", "gpus", "share"),
    [
        (Request(workers=4), [24 * GB], 0.25),
        (Request(workers=4), [24 * GB, 24 * GB], 0.5),
        (Request(workers=4), [24 * GB, 9 * GB], 1.0),
        (Request(workers=32), [24 * GB], 0.1666),
        (Request(workers=4, nodes=1), [24 * GB], 1.0),
        (Request(workers=4), [], 0.0),
        (Request(workers=4, gpus_per_client=0.0), [24 * GB], 0.0),
        (Request(workers=4, gpus_per_client=0.7), [], 0.7),
    ],
)
def test_flower_is_told_of_the_share(
    request_made: Request, gpus: list[int], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(request_module, "training_memory", lambda config: 3 * GB)
    made = simulation_of(request_made, compose(""), lambda: gpus)
    assert made.backend()["client_resources"] == {"num_cpus": 1, "num_gpus": share}


def test_gpus_are_not_looked_for_where_the_cpu_or_a_cluster_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = compose("train.device=cpu")
    assert simulation_of(Request(), config, never).gpus_per_client == 0
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert simulation_of(Request(), compose("train.device=auto"), never).gpus_per_client == 0


def test_a_gpu_without_room_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    problem = "a client takes about 3.0 GB of a GPU, the server as much, and only 4.0 GB are free"
    assert default_share("auto", lambda: [4 * GB], lambda: 3 * GB, 4) == 0
    assert caplog.messages == [f"{problem}: clients train on the CPU; --gpus-per-client forces it"]
    with pytest.raises(ValueError, match=problem):
        default_share("cuda", lambda: [4 * GB], lambda: 3 * GB, 4)


def test_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert device_of("auto", 0.25) == "cuda (0.25 of a GPU each)"
    assert [device_of(kind, 0) for kind in ("auto", "cpu", "mps")] == ["cpu", "cpu", "mps"]
    assert device_of("cpu", 0.25) == "cpu"


def test_the_log_says_what_clients_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    with caplog.at_level(logging.INFO, logger="flwr"):
        federate_in(tmp_path)("rounds=1 train.device=cpu dataset.max_train=80")
    assert "4 clients train on cpu" in caplog.messages
