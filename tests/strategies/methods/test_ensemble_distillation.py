"""Ensemble distillation: its loss in numbers, a student's start, and its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data.clients import client_data
from data.examples import Examples, ImageData
from data.spec import DatasetSpec
from data.unlabelled import numbered
from models import Slice, Task
from models.families import SlicedNetwork
from models.loading import network_to_load
from strategies.methods.feddf.ensemble_distillation import (
    DistillationSettings,
    Ensemble,
    Targets,
    accuracy,
    answers,
    distil,
)
from tests.support.toy_networks import randomised, same, state_of
from tests.support.toy_training import EPOCH as CPU

TEACHERS = (torch.tensor([[2.0, 0.0, -2.0]]), torch.tensor([[0.0, 2.0, 1.0]]))
FEW = DistillationSettings(steps=6, batch_size=16)


def targets_of(temperature: float = 1.0) -> Targets:
    ensemble = Ensemble(temperature)
    for logits in TEACHERS:
        ensemble.add(logits)
    return ensemble.targets()


def loss_of_zeros(temperature: float = 1.0) -> tuple[float, Tensor]:
    """Return the loss of a student that answers with zeros, and its gradient."""
    student = torch.zeros(1, 3, requires_grad=True)
    loss = targets_of(temperature).loss(student, torch.tensor([0]), temperature)
    loss.backward()
    assert student.grad is not None
    return loss.item(), student.grad[0]


def network(width: float = 1.0, norm: str = "bn-running", seed: int = 0) -> SlicedNetwork:
    task = Task("resnet20", 10, in_channels=1, image_size=8, options=(("norm", norm),))
    made = network_to_load(task, Slice(width=width))
    randomised(made, seed)
    for name, buffer in made.named_buffers():
        if norm == "bn-running" and name.endswith("num_batches_tracked"):
            buffer.fill_(1)  # as after some training
    return made


@pytest.fixture(scope="module")
def labelled() -> ImageData:
    found = client_data(DatasetSpec(clients=20, validation=0, test=0), 0).train
    assert isinstance(found, ImageData)
    return found


@pytest.fixture(scope="module")
def data(labelled: ImageData) -> Examples:
    return numbered(labelled)


# --- the loss ----------------------------------------------------------------------------------


def test_targets_are_the_softmax_of_the_teachers_mean_logits() -> None:
    found = targets_of().probabilities[0]
    assert found.tolist() == pytest.approx([0.449816, 0.449816, 0.100368], abs=1e-6)
    assert torch.equal(found, F.softmax(torch.tensor([1.0, 1.0, -0.5]).double(), 0).float())


def test_the_loss_and_its_gradient_are_those_worked_out_by_hand() -> None:
    loss, gradient = loss_of_zeros()
    assert loss == pytest.approx(0.149145, abs=1e-6)
    assert gradient.tolist() == pytest.approx([-0.116483, -0.116483, 0.232966], abs=1e-6)


def test_the_teacher_s_answer_comes_first_in_the_divergence() -> None:
    targets = targets_of().probabilities
    turned = F.kl_div(targets.log(), torch.full((1, 3), 1 / 3), reduction="batchmean").item()
    assert turned == pytest.approx(0.200304, abs=1e-6)
    assert loss_of_zeros()[0] != pytest.approx(turned, abs=1e-3)


def test_a_temperature_softens_both_sides_without_a_factor() -> None:
    soft = F.softmax(torch.tensor([1.0, 1.0, -0.5]) / 2, 0)
    expected = (soft * (soft * 3).log()).sum().item()
    assert loss_of_zeros(2.0)[0] == pytest.approx(expected, abs=1e-6)


def test_a_student_that_answers_as_its_teachers_do_has_no_loss() -> None:
    targets = targets_of()
    perfect = targets.probabilities.log().requires_grad_()
    loss = targets.loss(perfect, torch.tensor([0]), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert perfect.grad is not None
    assert perfect.grad.abs().max() < 1e-6


def test_a_certain_teacher_leaves_no_infinity_behind() -> None:
    ensemble = Ensemble(1.0)
    ensemble.add(torch.tensor([[1e4, 0.0, 0.0]]))
    targets = ensemble.targets()
    assert targets.least.tolist() == [0.0]
    assert targets.loss(torch.zeros(1, 3), torch.tensor([0]), 1.0).isfinite()


# --- teachers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "bn-running", "bn-static", "gn"])
def test_a_teacher_answers_for_each_example_alone(norm: str, data: Examples) -> None:
    """So what is kept of it is what any batch of these examples would have got."""
    teacher = network(norm=norm)
    whole = answers(teacher, data, CPU)
    assert whole.shape == (len(data), 10)
    if norm in ("bn-running", "gn"):
        few = torch.arange(5, 9)
        torch.testing.assert_close(answers(teacher, data.at(few), CPU), whole[few])
        images, _ = next(data.at(few).batches(4))
        assert not teacher.training
        torch.testing.assert_close(teacher(images)[-1].detach(), whole[few], rtol=1e-4, atol=1e-4)
    assert torch.equal(answers(teacher, data, CPU), whole)


@pytest.mark.parametrize("norm", ["bn", "bn-static"])
def test_norms_without_statistics_get_those_of_all_examples(norm: str, data: Examples) -> None:
    teacher = network(norm=norm)
    before = state_of(teacher)
    turned = data.at(torch.arange(len(data) - 1, -1, -1))
    one, other = answers(teacher, data, CPU), answers(teacher, turned, CPU)
    torch.testing.assert_close(other.flip(0), one, rtol=1e-3, atol=1e-3)
    assert same(state_of(teacher), before)


# --- students ------------------------------------------------------------------------------------


def taught(data: Examples, teacher: SlicedNetwork | None = None) -> Targets:
    ensemble = Ensemble(1.0)
    ensemble.add(answers(teacher or network(seed=3), data, CPU))
    return ensemble.targets()


def test_a_student_learns_what_its_teacher_answers(data: Examples, one_thread: None) -> None:
    targets, student = taught(data), network(0.35)
    settings = DistillationSettings(steps=60, batch_size=16)
    report = distil(student, data, targets, settings, CPU, seed=0)
    assert report.steps == 60
    assert report.loss_end < report.loss_start / 2
    assert (report.best_step, report.validation) == (None, None)


def test_the_same_arguments_give_the_same_student_and_a_seed_another(data: Examples) -> None:
    targets, students = taught(data), [network(0.35) for _ in range(3)]
    torch.manual_seed(1)
    chance = torch.random.get_rng_state()
    for student, seed in zip(students, (4, 4, 5), strict=True):
        distil(student, data, targets, FEW, CPU, seed)
    assert torch.equal(torch.random.get_rng_state(), chance)
    one, again, other = map(state_of, students)
    assert same(one, again)
    assert not same(one, other)


def test_the_rate_falls_to_zero_along_a_cosine(
    data: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def noted(self: torch.optim.Adam, *given: object) -> object:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *given)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    distil(network(0.35), data, taught(data), replace(FEW, steps=4), CPU, 0)
    assert rates == pytest.approx([1e-3, 0.853553e-3, 0.5e-3, 0.146447e-3], rel=1e-4)


def test_a_gradient_is_clipped_before_a_step(
    data: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[float] = []
    step = torch.optim.Adam.step

    def noted(self: torch.optim.Adam, *given: object) -> object:
        gradients = [p.grad.flatten() for p in self.param_groups[0]["params"]]
        norms.append(torch.cat(gradients).norm().item())
        return step(self, *given)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    for clip in (0.0, 1e-3):
        settings = replace(FEW, steps=2, clip=clip)
        distil(network(0.35), data, taught(data), settings, CPU, 0)
    assert min(norms[:2]) > 1e-3
    assert norms[2:] == pytest.approx([1e-3, 1e-3], rel=1e-3)


def test_a_student_that_gets_no_better_stops_and_is_its_best_self(
    data: Examples, labelled: ImageData
) -> None:
    """A teacher of nonsense: the start answers as well as anything after it."""
    student = network(0.35)
    best = state_of(student)
    perfect = replace(labelled, labels=answers(student, labelled, CPU).argmax(1))
    assert accuracy(student, perfect, CPU) == 1.0
    settings = replace(FEW, steps=40, check_every=2, patience=5)
    report = distil(student, data, taught(data), settings, CPU, 0, perfect)
    assert (report.steps, report.best_step, report.validation) == (6, 0, 1.0)
    assert same(state_of(student), best)


def test_with_validation_a_student_is_as_it_was_when_it_was_best(
    data: Examples, labelled: ImageData, one_thread: None
) -> None:
    teacher = network(seed=3)
    agreed = replace(labelled, labels=answers(teacher, labelled, CPU).argmax(1))
    settings = DistillationSettings(steps=40, batch_size=16, check_every=5, patience=40)
    student = network(0.35)
    before = accuracy(student, agreed, CPU)
    report = distil(student, data, taught(data, teacher), settings, CPU, 0, agreed)
    assert report.validation == accuracy(student, agreed, CPU)
    assert report.validation > before
    assert report.best_step
    assert report.best_step % 5 == 0


def test_labels_are_never_looked_at(labelled: ImageData) -> None:
    students = []
    for labels in (labelled.labels, torch.full_like(labelled.labels, -7)):
        unlabelled = numbered(replace(labelled, labels=labels))
        student = network(0.35)
        distil(student, unlabelled, taught(unlabelled), FEW, CPU, 0)
        students.append(state_of(student))
    assert same(*students)


def test_a_lone_last_example_waits_for_another_pass(data: Examples) -> None:
    few = numbered(data.at(torch.arange(5)))
    settings = replace(FEW, batch_size=2, steps=7)
    assert distil(network(0.35), few, taught(few), settings, CPU, 0).steps == 7
    with pytest.raises(ValueError, match="1 examples are too few to distil with"):
        distil(network(0.35), numbered(data.at(torch.arange(1))), taught(few), settings, CPU, 0)


def test_progress_is_told_step_by_step(data: Examples) -> None:
    told: list[int] = []
    distil(network(0.35), data, taught(data), replace(FEW, steps=3), CPU, 0, told=told.append)
    assert told == [1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"steps": 0}, "steps is 0: expected at least 1"),
        ({"batch_size": 1}, "batch_size is 1: expected at least 2"),
        ({"lr": 0.0}, "lr is 0.0: expected a number above 0"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"clip": -1.0}, "clip is -1.0: expected a finite number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DistillationSettings(**wrong)  # type: ignore[arg-type]
