"""`nestfl serve`: refusals before a node serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from inference.serving.certificates import make_certificates, make_token
from inference.serving.client import ServiceClient
from inference.serving.node_part import FACTS_FILE, TENSORS_FILE, PartError, read_part
from nestfl.commands import app
from nestfl.commands.serve import Request, settings_of
from nestfl.commands.serving_tree import Tree
from server_app.splitting import Splitter, chain
from tests.support.served import small_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    thresholds = {"device": 0.5, "edge": 0.5, "cloud": 0.0}
    splitter = Splitter(small_run(folder))
    splitter.split(chain((1, 2, 4), (0.5, 0.5)), thresholds, folder / "parts")
    return folder / "parts"


def serve(*arguments: object) -> str:
    """Return the line of a refusal."""
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    return result.output


def secrets(folder: Path) -> list[object]:
    certificate, key, _ = make_certificates(folder)
    make_token(folder / "token")
    return ["--cert", certificate, "--key", key, "--token-file", folder / "token"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nothing says where edge is"),
        (["--alone", "--parent", "https://edge:1"], "give one of --alone and --parent"),
        (["--parent", "https://edge:port"], "--parent 'https://edge:port': expected https://HOST"),
        (["--parent", "http://edge"], "expected https://HOST:PORT"),
        (["--parent", "https://"], "expected https://HOST:PORT"),
        (["--alone", "--max-transfer", "inf"], "--max-transfer inf: expected 0 to 1,000,000,000"),
        (["--alone", "--max-transfer", "nan"], "--max-transfer nan"),
        (["--alone", "--threshold", "nan"], "--threshold nan: expected 0 to 1"),
        (["--alone", "--threshold", "5"], "--threshold 5.0: expected 0 to 1"),
        (["--alone", "--listen", "foo"], "--listen 'foo': expected HOST:PORT"),
    ],
)
def test_a_node_that_would_not_do_what_is_asked_is_not_started(
    parts: Path, tmp_path: Path, options: list[str], says: str
) -> None:
    assert says in serve(parts / "device", *secrets(tmp_path), *options)


def test_a_node_may_do_without_its_parents_if_it_is_told_to(parts: Path, tmp_path: Path) -> None:
    certificate, key, _ = make_certificates(tmp_path)
    make_token(tmp_path / "token")
    asked = Request(
        parts / "device", alone=True, cert=certificate, key=key, token_file=tmp_path / "token"
    )
    assert settings_of(asked).parents == {}


def test_a_key_of_another_certificate_is_named(parts: Path, tmp_path: Path) -> None:
    options = secrets(tmp_path / "one")
    other = make_certificates(tmp_path / "other")[1]
    said = serve(parts / "cloud", *options[:3], other, *options[4:])
    assert str(other) in said
    assert "are no certificate and its key" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "foo"], "--listen 'foo': expected HOST:PORT"),
        (["--listen", "0.0.0.0:8443"], "choose from 127.0.0.1, localhost, ::1"),
        (["--batch", "3", "--ray"], "--batch, --ray is for one node"),
    ],
)
def test_a_tree_refuses_what_it_would_not_heed(parts: Path, options: list[str], says: str) -> None:
    assert says in serve(parts, *options)


def test_a_tree_has_its_parents_first_and_keeps_its_token_and_certificate(parts: Path) -> None:
    tree = Tree(parts)
    assert tree.ports == {"cloud": 8443, "edge": 8444, "device": 8445}
    certificate = tree.certificate.read_bytes()
    again = Tree(parts, "::1", 9000)
    assert again.url("cloud") == "https://[::1]:9000"
    assert again.token == tree.token
    assert again.certificate.read_bytes() == certificate


def test_a_folder_whose_files_do_not_belong_together_is_refused_in_a_sentence(
    parts: Path, tmp_path: Path
) -> None:
    tensors, facts = tmp_path / TENSORS_FILE, tmp_path / FACTS_FILE
    written = (parts / "device" / FACTS_FILE).read_text()
    facts.write_text(written)
    tensors.write_bytes((parts / "cloud" / TENSORS_FILE).read_bytes())
    with pytest.raises(PartError, match=r"has not the tensors that part\.json says"):
        read_part(tmp_path)
    facts.write_text(written.replace('"uint8"', '"complex"'))
    with pytest.raises(PartError, match="tensors of 'complex': expected one of uint8"):
        read_part(tmp_path)


def test_a_token_is_not_sent_in_clear() -> None:
    with pytest.raises(ValueError, match=r"'http://node': expected https://HOST:PORT"):
        ServiceClient("http://node", "token", "ca.pem")
