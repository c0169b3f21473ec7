"""`nestfl split`: the parts of a run's nodes, and runs that cannot be split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from inference.serving.node_part import PartError, answer, read_facts, read_part
from nestfl.commands import app
from server_app.splitting import Splitter
from tests.support.served import small_run

pytestmark = pytest.mark.usefixtures("one_thread")


def split(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["split", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the paper's seven nodes."""
    output = tmp_path_factory.mktemp("tree")
    return small_run(output, "strategy=serving_rate fleet=cis_7 model=resnet20")


def test_the_nodes_of_a_runs_fleet_get_their_parts(tree: Path, tmp_path: Path) -> None:
    code, output = split(tree, "--output", tmp_path / "parts")
    assert code == 0, output
    names = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert names == ["cloud", "device1", "device2", "device3", "device4", "edge1", "edge2"]
    facts = {name: read_facts(tmp_path / "parts" / name) for name in names}
    assert [facts[name].exit for name in ("device1", "edge1", "cloud")] == [1, 2, 3]
    assert facts["edge1"].first == facts["device1"].last
    assert facts["device1"].parents == {"edge1": 1.0}
    assert facts["cloud"].threshold == 0.0
    assert facts["device1"].max_transfer is None  # 80-15-5 are shares, and no limits
    # Of what comes to devices a fifth goes on, and of that a quarter, on validation data.
    sure = Splitter(tree).predictor.scores
    going = sure[0] < facts["device1"].threshold
    assert abs(int(going.sum()) - 0.2 * sure.shape[1]) <= 1
    assert int((sure[1][going] < facts["edge1"].threshold).sum()) in range(
        int(0.25 * int(going.sum())), int(0.25 * int(going.sum())) + 2
    )


def test_texts_are_split_with_their_masks(tmp_path: Path) -> None:
    run = small_run(
        tmp_path,
        "strategy=scalefl model=bert-mini dataset=docstrings dataset.max_train=80 train=bert "
        "dataset.max_tokens=16",
    )
    splitter = Splitter(run)
    exits = len(splitter.level.exits)
    last = f"1,{exits}"
    code, output = split(run, "--output", tmp_path / "parts", "--exits", last, "--threshold", 0.5)
    assert code == 0, output
    tokens = torch.randint(1, 50, (3, 9), dtype=torch.int32)
    tokens[0, 5:] = 0
    node1, node2 = (read_part(tmp_path / "parts" / name) for name in ("node1", "node2"))
    _, features = answer(*node1, (tokens,), 0)
    logits, _ = answer(*node2, features, node1[0].last)
    with torch.no_grad():
        assert torch.allclose(logits, splitter.net(tokens.long())[-1], atol=1e-5)


def test_what_cannot_be_split_is_said_in_a_sentence(tree: Path, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "parts")
    for arguments, says in (
        (("--exits", "1,2"), "nothing says what nodes pass on"),
        (("--exits", "1,9", "--threshold", 0.5), "a node has exit 9"),
        (("--exits", "2,1", "--threshold", 0.5), "expected a later one"),
        (("--exits", "1,x", "--threshold", 0.5), "--exits '1,x': expected numbers"),
        (("--exits", "1,2", "--forward", "0.5,0.5"), "expected a share of 0 to 1 for each"),
        (("--forward", "0.5"), "give its --exits"),
        (("--threshold", 2), "--threshold 2.0: expected 0 to 1"),
    ):
        code, said = split(tree, *output, *arguments)
        assert code == 2, arguments
        assert says in said
    assert not (tmp_path / "parts").exists()
    code, said = split(tree, "--output", tmp_path)
    assert code == 2
    assert f"{tmp_path} exists" in said


def test_a_folder_that_lacks_something_is_no_part(tree: Path, tmp_path: Path) -> None:
    split(tree, "--output", tmp_path / "parts", "--exits", "1", "--threshold", 0.5)
    node = tmp_path / "parts" / "node1"
    with pytest.raises(PartError, match=r"is no part of a network: expected part\.json"):
        read_part(tmp_path)
    (node / "part.safetensors").write_bytes(b"")
    with pytest.raises(PartError, match="cannot be read"):
        read_part(node)
