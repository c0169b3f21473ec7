"""Clients' memory between rounds outlives the client, the server and a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import Message

from client_app.memory import Memory
from protocol.environment import MEMORY
from protocol.reading import ProtocolError
from protocol.work import Recall, Work
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
    rounds = [f"round-00000{number}.safetensors" for number in (2, 3, 4)]
    assert memories(tmp_path) == {f"client-{n}": rounds for n in range(4)}


def test_with_rare_checkpoints_more_is_kept(federate: Federate, tmp_path: Path) -> None:
    whole, _ = federate(f"{RUN} rounds=5 clients_per_round=4 checkpoint.every=3 name=whole")
    cut = f"{RUN} rounds=5 clients_per_round=4 checkpoint.every=3 name=cut"
    with pytest.raises(KeyboardInterrupt):
        federate(cut, InProcessGrid(4, StopsIn(5)))
    resumed, lines = federate(f"resume={tmp_path}/runs/cut")
    assert all("forgot" not in line["clients"] for line in lines)
    assert all(torch.equal(whole.state[name], t) for name, t in resumed.state.items())


def test_a_run_that_goes_back_to_its_last_whole_checkpoint_finds_what_belongs_to_it(
    federate: Federate, tmp_path: Path
) -> None:
    whole, _ = federate(f"{RUN} rounds=4 clients_per_round=4 name=whole")
    with pytest.raises(KeyboardInterrupt):
        federate(f"{RUN} rounds=4 clients_per_round=4 name=cut", InProcessGrid(4, StopsIn(4)))
    newest = max((tmp_path / "runs" / "cut" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(MEMORY, str(tmp_path))
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(file.name[6:12] for file in folder.rglob("round-*.safetensors"))


def test_a_memory_comes_back_as_it_was(folder: Path) -> None:
    kept = {"h": torch.tensor([[1.0, -2.0]]), "n": torch.tensor(3)}
    shared = {"h": kept["h"].T.contiguous().T, "n": kept["n"], "same": kept["n"]}
    Memory("client-7", Recall("abc")).keep(4, shared)
    found = Memory("client-7", Recall("abc", round=4)).recall()
    assert found is not None
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    assert Memory("client-7", Recall("abc", round=3)).recall() is None
    assert Memory("client-8", Recall("abc", round=4)).recall() is None
    assert Memory("client-7", Recall("other", round=4)).recall() is None
    assert Memory("client-7", Recall("abc", round=4, turn=1)).recall() is None
    assert Memory("client-7", Recall("abc")).recall() == Memory("client-7", None).recall() == {}


def test_a_run_that_goes_back_drops_what_was_remembered_later(folder: Path) -> None:
    for number in (1, 2, 3, 2):
        Memory("client-0", Recall("abc")).keep(number, {"round": torch.tensor(number)})
    assert names(folder) == ["000002"]  # the first was two before the third


def test_what_the_server_asks_for_is_kept_however_often_it_took_no_reply(folder: Path) -> None:
    Memory("client-0", Recall("abc")).keep(1, {})
    for number in (2, 3, 4):  # late, or refused: the server goes on from round 1
        Memory("client-0", Recall("abc", round=1)).keep(number, {})
    assert names(folder) == ["000001", "000003", "000004"]


@pytest.mark.parametrize("run", ["", "../up", "a/b", "A", "x" * 65])
def test_a_server_names_no_path_on_the_device(run: str) -> None:
    with pytest.raises(ProtocolError):
        Recall(run)
