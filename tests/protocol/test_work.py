"""The work of a message: each setting is checked when it is first read."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import RecordDict

from data.spec import DatasetSpec
from models import Slice, Task
from protocol.records import WORK
from protocol.train_settings import TrainSettings
from protocol.work import Work, made
from strategies.methods.heterofl import HeteroFLSettings

ASKED = Work(Task("resnet20", 10, options=(("norm", "bn"),)), Slice(0.5, exits=(3, 9)),
             DatasetSpec("digits", clients=4), TrainSettings(lr=0.05))  # fmt: skip


def read(work: Work) -> Work:
    return Work.read(RecordDict({WORK: work.record()}))


def test_settings_that_messages_repeat_are_checked_once() -> None:
    first, second = read(replace(ASKED, seed=1)), read(replace(ASKED, seed=2, round=3))
    assert first == replace(ASKED, seed=1)
    assert second == replace(ASKED, seed=2, round=3)
    for part in ("task", "slice", "dataset", "train"):
        assert getattr(first, part) is getattr(second, part)
    settings = {"dynamic": True}
    assert made(HeteroFLSettings, settings) is made(HeteroFLSettings, dict(settings))


def test_settings_that_differ_are_not_taken_for_each_other() -> None:
    other = replace(ASKED, train=TrainSettings(lr=0.06), dataset=DatasetSpec("digits", clients=5))
    assert read(other) == other
    assert read(ASKED) == ASKED
    assert made(HeteroFLSettings, {"dynamic": True}).dynamic
    assert not made(HeteroFLSettings, {"dynamic": False}).dynamic
