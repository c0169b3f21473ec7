"""The run's record: complete after any kill, equal after any round trip."""

from __future__ import annotations

import io
import json
import logging
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from server_app.config.composing import Config, ConfigError, compose, load
from server_app.config.saved import CONFIG_FILE
from server_app.record import checkpoint
from server_app.record.checkpoint import CheckpointError
from server_app.record.metrics import RoundMetrics, read_metrics
from server_app.record.run_record import RunRecord
from server_app.record.summary import show, summarise

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
]


@pytest.fixture(scope="module")
def composed() -> Config:
    return compose("fleet=small")


@pytest.fixture
def config(composed: Config, tmp_path: Path) -> Config:
    return replace(composed, output=str(tmp_path / "runs"))


def round_metrics(number: int, **more: Any) -> RoundMetrics:
    metrics: Any = {
        "round": number,
        "seconds": 1.5,
        "clients": {"sampled": 4, "replied": 3, "refused": {"non-finite": 1}, "failed": {}},
        "bytes": {"down": 1000, "up": 900},
        "train": {"loss": 1 / number},
        "levels": {
            "1": {"exits": {"6": {"accuracy": 0.5, "loss": 1.0}}, "accuracy": 0.5},
            "2": {"exits": {"6": {"accuracy": 0.6}, "9": {"accuracy": 0.75}}, "accuracy": 0.75},
        },
        "worst": 0.5,
        "mean": 0.625,
    }
    metrics |= more
    result: RoundMetrics = metrics
    return result


def same_bits(left: Tensor, right: Tensor) -> bool:
    def raw(tensor: Tensor) -> Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    alike = left.dtype == right.dtype and left.shape == right.shape
    return alike and torch.equal(raw(left), raw(right))


# --- checkpoints -----------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda n: n != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)),
        max_size=5,
    ),
    st.dictionaries(st.text(), json_values, max_size=4),
    st.integers(0, 10**6),
)
def test_a_checkpoint_is_read_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    forms: dict[str, tuple[torch.dtype, list[int]]],
    state: dict[str, Any],
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=generator).mul(100).to(dtype)
        for name, (dtype, shape) in forms.items()
    }
    folder = tmp_path_factory.mktemp("checkpoints")
    found = checkpoint.load(checkpoint.save(folder, 7, tensors, state))
    assert (found.round, found.state) == (7, state)
    assert found.tensors.keys() == tensors.keys()
    assert all(same_bits(found.tensors[name], tensors[name]) for name in tensors)


def test_views_shared_memory_nan_and_gradients_are_kept(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    odd_nan = torch.tensor([0x7FC00123], dtype=torch.int32).view(torch.float32)
    tensors = {
        "base": base,
        "transposed": base.T,
        "row": base[1],
        "same": base,
        "expanded": base[:, :1].expand(3, 5),
        "nan": odd_nan,
        "scalar": torch.tensor(2**62 + 1),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    file = checkpoint.save(tmp_path, 1, tensors, {})
    checkpoint.load(file).tensors["base"].zero_()  # what is loaded is not the file itself
    found = checkpoint.load(file).tensors
    assert all(same_bits(found[name], tensor.detach()) for name, tensor in tensors.items())


def test_the_newest_are_kept_and_the_future_of_an_older_one_goes(tmp_path: Path) -> None:
    def rounds() -> list[int]:
        return sorted(checkpoint.load(file).round for file in tmp_path.iterdir())

    (tmp_path / ".round-000001.safetensors.unfinished").write_bytes(b"left by a kill")
    for number in (1, 2, 3, 4):
        checkpoint.save(tmp_path, number, {}, {}, keep=3)
    assert rounds() == [2, 3, 4]
    checkpoint.save(tmp_path, 3, {}, {"again": True}, keep=2)
    assert rounds() == [2, 3]
    assert checkpoint.load(tmp_path).state == {"again": True}


def test_by_default_two_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 3, 4):
        checkpoint.save(tmp_path, number, {}, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "round-000003.safetensors",
        "round-000004.safetensors",
    ]


def test_what_is_no_whole_checkpoint_is_named_and_passed_over(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    run = tmp_path / "run"
    folder = run / checkpoint.FOLDER
    good = checkpoint.save(folder, 1, {"w": torch.ones(100)}, {})
    whole = good.read_bytes()
    broken = folder / "round-000002.safetensors"
    for size in (0, 4, 100, len(whole) - 1):
        broken.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=f"{broken} is not a whole checkpoint"):
            checkpoint.load(broken)
        assert checkpoint.load(run).path == checkpoint.load(folder).path == good
    for metadata in (None, {"format": "pt"}, {"nestfl": "{}"}, {"nestfl": "no JSON"}):
        save_file({"w": torch.ones(1)}, broken, metadata)
        with pytest.raises(CheckpointError, match=f"{broken} is not a checkpoint of nestfl"):
            checkpoint.load(broken)
        assert checkpoint.load(run).path == good
    save_file({}, broken, {"nestfl": '{"format": 0}'})
    with pytest.raises(CheckpointError, match=f"{broken} has format 0, not 2"):
        checkpoint.load(broken)
    good.unlink()
    with pytest.raises(CheckpointError, match=r"no whole checkpoint in .*; .*round-000002"):
        checkpoint.load(run)
    with pytest.raises(CheckpointError, match="absent"):
        checkpoint.load(tmp_path / "absent")


TINY = {
    "round": torch.tensor(3),
    "state.w": torch.tensor([[1.5, -2.0, 0.0]]),
    "state.seen": torch.tensor([True, False]),
    "state.half": torch.ones(2, dtype=torch.bfloat16),
}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_checkpoint_with_any_bytes_changed_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    file = checkpoint.save(folder, 3, TINY, {"metrics": {"round": 3, "loss": 0.5}})
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.sampled_from([1, 1, 4, 64]))
    there = whole[at : at + length]
    changed = data.draw(st.binary(min_size=len(there), max_size=len(there)))
    file.write_bytes(whole[:at] + changed + whole[at + len(there) :])
    if changed == there:
        assert checkpoint.load(file).round == 3
    else:
        with pytest.raises(CheckpointError, match="round-000003"):
            checkpoint.load(file)


def test_a_damaged_checkpoint_is_passed_over_aloud_but_not_where_it_is_asked_for(
    config: Config, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunRecord.create(config) as record:
        for number in (1, 2, 3):
            state = {"metrics": round_metrics(number)}
            last = checkpoint.save(record.checkpoints, number, {"w": torch.ones(1000)}, state)
            record.append(round_metrics(number))
    whole = last.read_bytes()
    middle = len(whole) // 2
    last.write_bytes(whole[:middle] + bytes(range(64)) + whole[middle + 64 :])
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    start = checkpoint.load(record.directory)
    assert start.round == 2
    assert caplog.messages == [
        f"{last} is damaged: its checksum is of other contents; trying the one before"
    ]
    with pytest.raises(CheckpointError, match=f"{last} is damaged"):
        checkpoint.load(last)
    with RunRecord.resume(config, start) as resumed:
        assert [line["round"] for line in resumed.metrics()] == [1, 2]


def test_a_checkpoint_of_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "round-000003.safetensors"
    header = {"format": 1, "round": 3, "state": {"metrics": {"round": 3}}}
    save_file(TINY, file, {"nestfl": json.dumps(header)})
    found = checkpoint.load(tmp_path)
    assert (found.round, found.state) == (3, header["state"])
    assert all(same_bits(found.tensors[name], tensor) for name, tensor in TINY.items())


@pytest.mark.parametrize(("format", "checksum"), [(2, {}), (2, {"checksum": "0"}),
                                                  (1, {"checksum": "0"})])  # fmt: skip
def test_only_a_checkpoint_of_before_may_lack_a_checksum_and_none_may_have_a_wrong_one(
    format: int, checksum: dict[str, str], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "round-000003.safetensors"
    header = {"format": format, "round": 3, "state": {}}
    save_file(TINY, file, {"nestfl": json.dumps(header), **checksum})
    with pytest.raises(CheckpointError, match="is damaged: its checksum is of other contents"):
        checkpoint.load(file)


def test_a_state_that_is_no_json_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path, 1, {}, {"tensor": torch.ones(1)})
    assert not list(tmp_path.iterdir())


SAVE_FOREVER = """
import itertools, sys, torch
from pathlib import Path
from server_app.record import checkpoint
for number in itertools.count(1):
    tensors = {str(i): torch.full((250_000,), float(number)) for i in range(8)}
    checkpoint.save(Path(sys.argv[1]), number, tensors, {"number": number})
    print(number, flush=True)
"""


def test_kill_9_in_the_middle_of_saving_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    cut_short = 0
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        command = [sys.executable, "-c", SAVE_FOREVER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saver:
            assert saver.stdout is not None
            assert saver.stdout.readline() == "1\n"
            unfinished = wait_for_unfinished(folder)
            saver.send_signal(signal.SIGKILL)
            saver.wait()
            reported = [1, *map(int, saver.stdout.read().split())]
        cut_short += unfinished and any(folder.glob(".*"))
        found = checkpoint.load(folder)
        assert found.round >= reported[-1]
        assert found.state == {"number": found.round}
        assert all(bool((tensor == found.round).all()) for tensor in found.tensors.values())
        if cut_short:
            break
    assert cut_short, "no kill came in the middle of a write"


def wait_for_unfinished(folder: Path) -> bool:
    end = time.monotonic() + 2
    while time.monotonic() < end:
        if any(folder.glob(".*")):
            return True
    return False


# --- the run directory -----------------------------------------------------------------------


def test_a_run_directory_is_named_by_its_choices_and_is_never_anothers(config: Config) -> None:
    first, second = RunRecord.create(config), RunRecord.create(config)
    assert first.directory != second.directory
    assert "-scalefl-resnet20-digits" in first.directory.name
    assert load(first.directory / CONFIG_FILE) == config
    mine = replace(config, name="mine")
    with RunRecord.create(mine) as named:
        assert named.directory == Path(config.output) / "mine"
        named.append(round_metrics(1))
    with pytest.raises(ConfigError, match=r"mine exists; give another name$"):
        RunRecord.create(mine)
    checkpoint.save(named.checkpoints, 1, {}, {})
    with pytest.raises(ConfigError, match=r"mine exists; give another name, or go on with resume="):
        RunRecord.create(mine)


def test_a_run_that_came_to_nothing_does_not_keep_its_name(config: Config) -> None:
    mine = replace(config, name="mine")
    RunRecord.create(mine).close()
    with RunRecord.create(replace(mine, rounds=7)) as again:
        assert load(again.directory / CONFIG_FILE).rounds == 7


def test_the_configuration_kept_says_where_the_run_is(config: Config, tmp_path: Path) -> None:
    with RunRecord.create(config, tmp_path / "there" / "mine") as record:
        assert load(record.directory / CONFIG_FILE).output == str(tmp_path / "there")
    checkpoint.save(record.checkpoints, 1, {}, {})
    moved = record.directory.rename(tmp_path / "moved")
    with RunRecord.resume(config, checkpoint.load(moved)) as resumed:
        assert load(resumed.directory / CONFIG_FILE).output == str(tmp_path)


def test_a_line_a_round_and_no_number_is_null(config: Config) -> None:
    with RunRecord.create(config) as record:
        record.append(round_metrics(1))
        record.append(round_metrics(2, train={"loss": math.nan}))
        assert record.metrics() == [round_metrics(1), round_metrics(2, train={"loss": None})]
    with record.metrics_file.open("a", encoding="utf-8") as lines:
        lines.write('{"round": 3, "sec')
    assert [line["round"] for line in read_metrics(record.metrics_file)] == [1, 2]
    assert read_metrics(record.directory / "absent") == []


def events(record: RunRecord, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(record.tensorboard))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_a_resumed_run_forgets_the_rounds_after_its_checkpoint(config: Config) -> None:
    with RunRecord.create(config) as record:
        for number in (1, 2, 3, 4):
            record.append(round_metrics(number))
            if number <= 2:
                checkpoint.save(record.checkpoints, number, {}, {"metrics": round_metrics(number)})
        record.metrics_file.open("ab").write(b'{"round": 5')
    record.finish({"rounds": 4})
    start = checkpoint.load(record.directory)
    longer = replace(config, rounds=99)
    with RunRecord.resume(longer, start) as resumed:
        assert resumed.directory == record.directory
        assert [line["round"] for line in resumed.metrics()] == [1, 2]
        assert not resumed.summary_file.exists()
        assert load(resumed.directory / CONFIG_FILE) == longer
        resumed.append(round_metrics(3, train={"loss": 9.0}))
    assert [line["round"] for line in resumed.metrics()] == [1, 2, 3]
    assert events(resumed, "train/loss") == [(1, 1.0), (2, 0.5), (3, 9.0)]
    assert events(resumed, "levels/2/exits/9/accuracy")[0] == (1, 0.75)


def test_the_line_that_a_kill_kept_from_being_written_comes_from_the_checkpoint(
    config: Config,
) -> None:
    with RunRecord.create(config) as record:
        record.append(round_metrics(1))
    checkpoint.save(record.checkpoints, 2, {}, {"metrics": round_metrics(2)})
    with RunRecord.resume(config, checkpoint.load(record.directory)) as resumed:
        assert resumed.metrics() == [round_metrics(1), round_metrics(2)]


def test_a_checkpoint_outside_of_any_run_is_not_resumed(config: Config, tmp_path: Path) -> None:
    stray = checkpoint.load(checkpoint.save(tmp_path / "a" / "b", 1, {}, {}))
    with pytest.raises(ConfigError, match="is no run directory and in none"):
        RunRecord.resume(config, stray)
    assert not list(tmp_path.rglob(CONFIG_FILE))


# --- the summary -----------------------------------------------------------------------------


def test_the_summary_adds_up_and_keeps_the_newest_scores() -> None:
    on_clients: dict[str, Any] = {"levels": {"1": {"local": 0.9}}, "local": 0.9, "worst": None}
    summary = summarise([round_metrics(1), round_metrics(2, **on_clients)])
    assert (summary["rounds"], summary["seconds"]) == (2, 3.0)
    assert summary["bytes"] == {"down": 2000, "up": 1800}
    assert summary["clients"] == {
        **{"sampled": 8, "replied": 6},
        **{"refused": {"non-finite": 2}, "failed": {}},
    }
    assert (summary["worst"], summary["local"]) == (0.5, 0.9)
    assert (summary["levels"]["1"]["accuracy"], summary["levels"]["1"]["local"]) == (0.5, 0.9)


def test_without_a_terminal_the_table_is_plain_text(config: Config) -> None:
    with RunRecord.create(config) as record:
        record.append(round_metrics(1))
        summary = summarise(record.metrics())
        record.finish(summary)
    assert json.loads(record.summary_file.read_text()) == summary
    output = io.StringIO()
    show(record, summary, Console(file=output))
    text = output.getvalue()
    assert text.isascii()
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["level", "exit", "6", "exit", "9", "accuracy"]
    assert rows[1:3] == [["1", "50.00%", "-", "50.00%"], ["2", "60.00%", "75.00%", "75.00%"]]
    assert ["accuracy:", "worst", "50.00%,", "mean", "62.50%"] in rows
    assert ["bytes:", "1.0", "kB", "down,", "900", "bytes", "up"] in rows
    assert ["replies:", "3", "of", "4,", "1", "refused", "(non-finite)"] in rows
    assert ["run:", str(record.directory)] in rows


def test_a_terminal_gets_a_frame_and_an_empty_run_no_table(config: Config) -> None:
    record = RunRecord.create(config)
    framed, empty = io.StringIO(), io.StringIO()
    show(record, summarise([round_metrics(1)]), Console(file=framed, force_terminal=True))
    assert "─" in framed.getvalue()
    show(record, summarise([]), Console(file=empty))
    assert empty.getvalue().startswith("time:        0 rounds")
