"""A network that is run in parts answers as it does in one piece, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inference import RunningEnsemble
from models import Slice, SlicedNetwork, SliceError, Task, Walk, family
from models.families import Features
from models.frozen import freeze, needs_statistics
from models.parts import Part, features_read, load_part

pytestmark = pytest.mark.usefixtures("one_thread")

EXITS = {
    "resnet20": (2, 5, 9),
    "resnet18": (2, 5, 8),
    "preresnet-mini": (3, 7, 12),
    "conv1d-micro": (2, 5, 9),
    "mobilenet_v2-mini": (4, 9, 17),
    "efficientnet_v2-mini": (4, 9, 18),
    "efficientnet_b4": (6, 22, 32),
    "msdnet24": (15, 21, 24),
    "vit-micro": (1, 3, 4),
    "bert-mini": (1, 3, 4),
    "transformer-micro": (1, 2, 3),
}


def task_of(name: str) -> Task:
    options: dict[str, Any] = {"vocabulary": 50} if name.startswith("bert") else {}
    return Task(name, options=tuple(options.items()), image_size=16, tokens=7, length=16)


def network(name: str, **slice: Any) -> tuple[Task, Slice, SlicedNetwork, Tensor]:
    task, held = task_of(name), Slice(exits=EXITS[name], **slice)
    torch.manual_seed(0)
    net = task.build(held).eval()
    if family(name).has_channels:
        x = torch.randn_like(task.input(5))
    else:
        x = torch.randint(0, 10, (5, 7))
    for module in net.modules():  # those of ViTs start at zero
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.1)
    return task, held, freeze(net, [x]) if needs_statistics(net) else net, x


def loaded(task: Task, held: Slice, part: Part, given: Features, ensemble: bool = False) -> Part:
    """The part as another machine has it: of its tensors and numbers alone."""
    own = Slice(held.width, held.blocks, tuple(part.heads))
    tensors = {name: tensor.detach().clone() for name, tensor in part.tensors(given).items()}
    return load_part(task, own, part.first, part.last, ensemble, tensors)


@pytest.mark.parametrize("width", [1.0, 0.5])
@pytest.mark.parametrize("name", EXITS)
@torch.no_grad()
def test_the_parts_of_a_network_answer_as_its_exits_do(name: str, width: float) -> None:
    task, held, net, x = network(name, width=width)
    features: Features = (x,)
    for first, last, whole in zip((0, *EXITS[name]), EXITS[name], net(x), strict=False):
        part = loaded(task, held, Part(net, first, last), features)
        logits, features = part(features)
        assert torch.equal(logits, whole)


@pytest.mark.parametrize("name", ["resnet20", "bert-mini", "msdnet24"])
@torch.no_grad()
def test_the_parts_of_an_ensemble_answer_with_the_mean_of_all_exits_so_far(name: str) -> None:
    task, held, net, x = network(name)
    features: Features = (x,)
    whole = RunningEnsemble(net)(x)
    for first, last, mean in zip((0, *EXITS[name]), EXITS[name], whole, strict=False):
        part = loaded(task, held, Part(net, first, last, True), features, True)
        logits, features = part(features)
        assert torch.equal(logits, mean)


@torch.no_grad()
def test_a_part_may_start_behind_any_of_its_units() -> None:
    _, _, net, x = network("resnet20")
    first, middle, last = net(x)
    _, features = Part(net, 0, 2)((x,))
    assert torch.equal(Part(net, 0, 9)(features, start=2)[0], last)
    assert torch.equal(Part(net, 0, 5)((x,))[0], middle)
    assert first.shape == last.shape


@pytest.mark.parametrize("name", EXITS)
@torch.no_grad()
def test_the_parts_of_a_network_share_no_tensor_and_have_all_that_answers_take(name: str) -> None:
    _, _, net, x = network(name)
    names: list[str] = []
    features: Features = (x,)
    for first, last in zip((0, *EXITS[name]), EXITS[name], strict=False):
        part = Part(net, first, last)
        names.extend(part.tensors(features))
        _, features = part(features)
    assert len(set(names)) == len(names)
    left = {each.rpartition(".")[2] for each in net.state_dict().keys() - set(names)}
    assert left <= {"num_batches_tracked"}  # which says nothing of an answer


@torch.no_grad()
def test_a_loaded_part_has_no_other_tensors_in_memory() -> None:
    task, held, net, x = network("resnet20")
    _, features = Part(net, 0, 5)((x,))
    part = loaded(task, held, Part(net, 5, 9), features)
    present = {name for name, tensor in part.net.state_dict().items() if not tensor.is_meta}
    assert present == Part(net, 5, 9).tensors(features).keys()
    assert not any(name.startswith(("conv1", "layer1", "exits")) for name in present)
    with pytest.raises((NotImplementedError, RuntimeError)):
        part((x,), start=0)


@torch.no_grad()
def test_msdnet_does_not_read_a_scale_that_has_ended() -> None:
    _, _, net, x = network("msdnet24")
    _, features = Part(net, 0, 15)((x,))
    assert features_read(Part(net, 15, 24), features, 15) == (False, True, True)
    emptied = (features[0][:, :0], *features[1:])
    assert torch.equal(Part(net, 15, 24)(emptied)[0], net(x)[-1])


def test_a_network_that_says_only_how_to_walk_cannot_be_run_in_parts() -> None:
    class Walker(SlicedNetwork):
        depth = 1

        def __init__(self) -> None:
            super().__init__()
            self.exits = nn.ModuleDict()

        def walk(self, x: Tensor) -> Walk:
            yield x

    assert Walker()(torch.ones(1))[0].tolist() == [1]
    with pytest.raises(SliceError, match="Walker cannot be run in parts"):
        Part(Walker(), 0, 1)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (5, 5), (-1, 2), (2, 10)])
def test_a_part_ends_at_an_exit(first: int, last: int) -> None:
    net = task_of("resnet20").build(Slice(exits=EXITS["resnet20"]), "meta")
    with pytest.raises(SliceError, match="exits follow 2, 5, 9"):
        Part(net, first, last)
