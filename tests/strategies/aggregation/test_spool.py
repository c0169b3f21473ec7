"""A round's updates on disk: they are read as written, and no file is left."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from models import SliceMap, Window, slice_map
from strategies.aggregation.spool import Spool
from strategies.aggregation.trimmed_mean import Median
from strategies.aggregation.update import Update
from tests.support.toy_networks import same

FULL = nn.BatchNorm1d(8)
WHOLE = slice_map(FULL, FULL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def update(seed: int, mapping: SliceMap = WHOLE) -> Update:
    chance = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(each.shape, generator=chance).to(each.dtype)
        for name, each in mapping.regions.items()
    }
    return Update(state, mapping, weight=seed, client=seed, level=seed + 1)


def files_in(folder: Path) -> list[str]:
    """Return the files that this process has open there, with names or without."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except OSError:  # the one that lists them
            continue
    return [link for link in links if link.startswith(str(folder))]


def test_updates_are_read_as_they_were_written(folder: Path) -> None:
    spool, given = Spool(), [update(seed) for seed in range(3)]
    for each in given:
        spool.add(each)
    for written, read in zip(given, spool.updates(), strict=True):
        assert same(dict(read.state), dict(written.state))
        assert (read.weight, read.client, read.level) == (
            *(written.weight, written.client, written.level),
        )
        read.check_form()


def test_tensors_that_are_no_block_of_memory_are_written_in_their_order() -> None:
    full, spool = nn.Linear(3, 5), Spool()
    state = {"weight": torch.arange(15.0).view(3, 5).t(), "bias": torch.arange(10.0)[::2]}
    spool.add(Update(state, slice_map(full, full)))
    (read,) = spool.updates()
    assert same(dict(read.state), state)
    one = nn.Linear(1, 1, bias=False)
    spool.add(Update({"weight": torch.arange(4.0).view(2, 2)[:1, 1:].t()}, slice_map(one, one)))
    assert [float(each.state["weight"][0, 0]) for each in spool.updates()] == [0, 1]


def test_a_range_is_read_alone() -> None:
    spool = Spool()
    spool.add(update(1))
    (kept,) = spool.kept
    found = spool.read(kept.offsets["running_var"], 2, 5, torch.float32)
    assert torch.equal(found, update(1).state["running_var"][2:5])
    with pytest.raises(OSError, match="cut short"):
        spool.read(kept.offsets["num_batches_tracked"], 0, 9, torch.int64)


def test_a_spool_of_nothing_opens_no_file(folder: Path) -> None:
    assert list(Spool().updates()) == []
    assert files_in(folder) == []


def test_the_file_has_no_name_and_is_gone_with_the_spool(folder: Path) -> None:
    spool = Spool()
    spool.add(update(1))
    assert len(files_in(folder)) == 1
    assert list(folder.iterdir()) == []  # so it does not outlive a process that is killed
    del spool
    assert files_in(folder) == []


def test_the_file_is_gone_after_an_error_in_the_round(folder: Path) -> None:
    def fails() -> None:
        median = Median()
        median.add(update(1))
        raise KeyError("the round")

    with pytest.raises(KeyError):
        fails()
    gc.collect()
    assert files_in(folder) == []


def test_a_full_disk_is_told_and_the_update_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool()
    spool.add(update(1))
    write, room = os.pwrite, iter([7])

    def full(file: int, data: memoryview, offset: int) -> int:
        for count in room:
            return write(file, data[:count], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(
            OSError, match=f"do not fit in {folder}.*No space left.*TMPDIR"
        ) as raised:
            spool.add(update(2))
    assert raised.value.errno == errno.ENOSPC
    spool.add(update(3))
    assert [each.client for each in spool.updates()] == [1, 3]
    assert all(
        same(dict(each.state), dict(update(each.client or 0).state)) for each in spool.updates()
    )


def test_a_few_bytes_at_a_time_are_written_and_read_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:7], at))
    monkeypatch.setattr(os, "preadv", lambda file, into, at: read(file, [into[0][:5]], at))
    spool = Spool()
    spool.add(update(4))
    (found,) = spool.updates()
    assert same(dict(found.state), dict(update(4).state))


def test_maps_are_kept_without_their_runs_and_shared_by_those_that_shared_them() -> None:
    other = slice_map(nn.Linear(4, 4), nn.Linear(4, 2), Window("random", 1))
    assert other.regions["weight"].runs  # which the region remembers from now on
    spool = Spool()
    for mapping in (other, WHOLE, other):
        spool.add(update(1, mapping))
    one, two, three = (kept.update.map for kept in spool.kept)
    assert one is three
    assert one is not two
    assert "runs" not in vars(one.regions["weight"])
    assert one.regions["weight"].axes is other.regions["weight"].axes
