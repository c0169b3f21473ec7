"""What clients remember between their rounds outlives them, the server and a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import Message

from client_app.memory import recall, remember
from protocol.environment import MEMORY
from protocol.reading import ProtocolError
from protocol.records import Recall, Work
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid
from tests.support.methods import Pulling, register

RUN = (
    "strategy=fedavg strategy.name=pulling fleet.clients=4 clients_per_round=3 "
    "dataset.max_train=120 dataset.max_test=20"
)


@pytest.fixture
def federate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federate:
    register(monkeypatch, Pulling)
    monkeypatch.setenv(MEMORY, str(tmp_path / "memory"))
    (tmp_path / "runs").mkdir()
    return federate_in(tmp_path / "runs")


def memories(tmp_path: Path) -> dict[str, list[str]]:
    """The rounds that each client of the only run remembers."""
    (run,) = (tmp_path / "memory").iterdir()
    return {each.name: sorted(file.name for file in each.iterdir()) for each in run.iterdir()}


def test_a_resumed_run_goes_on_with_what_its_clients_remember(
    federate: Federate, tmp_path: Path
) -> None:
    whole, lines = federate(f"{RUN} rounds=4 name=whole")
    assert all("forgot" not in line["clients"] for line in lines)
    with pytest.raises(KeyboardInterrupt):
        federate(f"{RUN} rounds=4 name=cut", InProcessGrid(4, StopsIn(3)))
    resumed, _ = federate(f"resume={tmp_path}/runs/cut")
    assert resumed.round == 4
    assert all(torch.equal(whole.state[name], t) for name, t in resumed.state.items())
    assert resumed.last_replies == whole.last_replies


def test_what_is_remembered_changes_the_training(federate: Federate, tmp_path: Path) -> None:
    whole, _ = federate(f"{RUN} rounds=2 clients_per_round=4 name=whole")
    forgetful, lines = federate(
        f"{RUN} rounds=2 clients_per_round=4 name=other", InProcessGrid(4, Forgets(tmp_path))
    )
    assert lines[0]["clients"].get("forgot") is None
    assert lines[1]["clients"]["forgot"] == 4
    assert not torch.equal(whole.state["conv1.weight"], forgetful.state["conv1.weight"])


def test_a_client_keeps_what_a_resumed_run_may_go_back_to_and_no_more(
    federate: Federate, tmp_path: Path
) -> None:
    federate(f"{RUN} rounds=4 clients_per_round=4")
    rounds = ["round-000003.safetensors", "round-000004.safetensors"]
    assert memories(tmp_path) == {f"client-{n:06d}": rounds for n in range(4)}


def test_with_rare_checkpoints_more_is_kept(federate: Federate, tmp_path: Path) -> None:
    whole, _ = federate(f"{RUN} rounds=5 clients_per_round=4 checkpoint.every=3 name=whole")
    cut = f"{RUN} rounds=5 clients_per_round=4 checkpoint.every=3 name=cut"
    with pytest.raises(KeyboardInterrupt):
        federate(cut, InProcessGrid(4, StopsIn(5)))
    resumed, lines = federate(f"resume={tmp_path}/runs/cut")
    assert all("forgot" not in line["clients"] for line in lines)
    assert all(torch.equal(whole.state[name], t) for name, t in resumed.state.items())


def test_a_refused_reply_is_not_what_its_client_goes_on_from(
    federate: Federate, tmp_path: Path
) -> None:
    def no_number(client: int, message: Message, reply: Message) -> Message:
        if client == 1 and message.metadata.message_type == "train":
            reply.content.metric_records["metrics"]["loss"] = float("nan")
        return reply

    strategy, _ = federate(f"{RUN} rounds=2 clients_per_round=4", InProcessGrid(4, no_number))
    assert strategy.last_replies == {0: 2, 2: 2, 3: 2}


class StopsIn:
    """The server dies in a round, after its clients have trained."""

    def __init__(self, round: int) -> None:
        self.round, self.trained = round, 0

    def __call__(self, client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            self.trained += Work.read(message.content).round == self.round
            if self.trained == 3:
                raise KeyboardInterrupt
        return reply


class Forgets:
    """Clients that lose all they remember, once they have answered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            for number, file in enumerate((self.folder / "memory").rglob("*.safetensors")):
                file.write_bytes(b"damaged") if number % 2 else file.unlink()
        return reply


# --- the files -----------------------------------------------------------------------------------


def test_a_memory_comes_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY, str(tmp_path))
    kept = {"h": torch.tensor([[1.0, -2.0]]), "n": torch.tensor(3)}
    remember(Recall("abc", 7), 4, {"h": kept["h"].T.contiguous().T, "n": kept["n"]})
    found = recall(Recall("abc", 7, round=4))
    assert found is not None
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    assert recall(Recall("abc", 7, round=3)) is None
    assert recall(Recall("abc", 8, round=4)) is None
    assert recall(Recall("other", 7, round=4)) is None
    assert recall(Recall("abc", 7)) == recall(None) == {}


def test_a_run_that_goes_back_drops_what_was_remembered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY, str(tmp_path))
    for number in (1, 2, 3, 2):
        remember(Recall("abc", 0), number, {"round": torch.tensor(number)})
    (file,) = tmp_path.rglob("*.safetensors")  # the first was two before the third
    assert file.name == "round-000002.safetensors"


@pytest.mark.parametrize("run", ["", "../up", "a/b", "A", "x" * 65])
def test_a_server_names_no_path_on_the_device(run: str) -> None:
    with pytest.raises(ProtocolError):
        Recall(run, 0)
