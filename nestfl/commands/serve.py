"""`nestfl serve`: runs one node, or a whole tree on this machine to try it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from data.ranges import THREADS, Range
from nestfl.commands.group import app
from nestfl.commands.shared_options import A_SHARE, FILE, RATE, THREAD_COUNT, number, refuse, whole

if TYPE_CHECKING:
    from inference.serving.settings import ServeSettings


@app.command(
    "serve",
    epilog="""\b
    Examples:
      nestfl serve parts
      nestfl serve parts/cloud --cert node.pem --key node.key --token-file token
      nestfl serve parts/device --parent https://edge.example:8443 --ca ca.pem ...""",
)
@click.argument(
    "folder", type=FILE, help="A node's part; or the folder of all, to try them on this machine."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8443",
    help="Where; of a tree the first port.",
)
@click.option(
    "--parent",
    metavar="[NAME=]URL",
    multiple=True,
    help="Where a parent is, such as https://edge.example:8443.",
)
@click.option("--alone", is_flag=True, help="Do without the parents, and answer all here.")
@click.option("--cert", metavar="FILE", type=FILE, help="This node's certificate.")
@click.option("--key", metavar="FILE", type=FILE, help="The key of the certificate.")
@click.option("--ca", metavar="FILE", type=FILE, help="What signed the parents' certificates.")
@click.option(
    "--token-file", metavar="FILE", type=FILE, help="The token that whoever asks this node has."
)
@click.option(
    "--parent-token-file",
    metavar="FILE",
    type=FILE,
    help="The parents' token; this node's if not given.",
)
@click.option(
    "--parent-timeout",
    metavar="SECONDS",
    type=number(Range(0, 3600, above=True)),
    default=2.0,
    help="How long a parent's answer is waited for.",
)
@click.option("--half", is_flag=True, help="Send features with 16 bits each, not 32.")
@click.option(
    "--threshold", metavar="SHARE", type=A_SHARE, help="In place of the threshold of the part."
)
@click.option(
    "--max-transfer",
    metavar="RATE",
    type=RATE,
    help="The most samples a second to pass on; that of the part if not given.",
)
@click.option(
    "--batch",
    metavar="N",
    type=whole(Range(1, 65_536)),
    default=64,
    help="Samples of a request, and at once.",
)
@click.option(
    "--wait-ms",
    metavar="MS",
    type=number(Range(0, 60_000)),
    default=0.0,
    help="How long a batch waits for more samples.",
)
@click.option(
    "--most-waiting",
    metavar="N",
    type=whole(Range(1, 1_000_000)),
    default=1024,
    help="Samples that may wait.",
)
@click.option(
    "--threads", metavar="N", type=THREAD_COUNT, help="Of torch; as many as cores if not given."
)
@click.option("--ray", is_flag=True, help="Serve as a deployment of Ray Serve.")
@click.option("--replicas", metavar="N[..M]", default="1", help="With --ray: how many replicas.")
def serve_command(**request: Any) -> None:
    """Answer requests: run a node, or a whole tree of them on this machine."""
    try:
        serve(Request(**request))
    except (ValueError, OSError) as error:
        refuse("serve", error)


SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Request:
    """The options of `nestfl serve`, checked."""

    folder: Path
    listen: str = "127.0.0.1:8443"
    parent: tuple[str, ...] = ()
    """[NAME=]https://HOST:PORT; NAME may be left out for a single parent."""
    alone: bool = False
    """Serve the node without its parents."""
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    token_file: Path | None = None
    parent_token_file: Path | None = None
    parent_timeout: float = 2.0
    half: bool = False
    threshold: float | None = None
    max_transfer: float | None = None
    batch: int = 64
    wait_ms: float = 0.0
    most_waiting: int = 1024
    threads: int | None = None
    ray: bool = False
    replicas: str = "1"


def serve(request: Request) -> None:
    """Serve the folder's node or tree until stopped."""
    from inference.serving.node_part import is_part
    from inference.serving.settings import ServeError
    from protocol.environment import private_ray

    if not is_part(request.folder):
        from nestfl.commands.serving_tree import serve_tree

        _check_tree(request)
        serve_tree(request.folder, *_listen(request.listen), request.half)
        return
    settings = settings_of(request)
    if request.ray:
        if "RAY_ADDRESS" not in os.environ:
            os.environ |= private_ray()  # Ray reads it at its import
        try:
            from inference.serving.ray_tier import serve_on_ray
        except ImportError as error:
            raise ServeError(f"--ray needs Ray Serve: pip install 'ray[serve]' ({error})") from None

        serve_on_ray(request.folder, settings, _replicas(request.replicas))
        return
    from inference.serving.server import serve as serve_node

    serve_node(request.folder, settings)


def settings_of(request: Request) -> ServeSettings:
    """Return the node's settings; raise `ServeError` for wrong or missing options."""
    from inference.rate_thresholds import check_threshold
    from inference.serving.node_part import read_facts
    from inference.serving.parent import Address
    from inference.serving.settings import ServeError, ServeSettings

    facts = read_facts(request.folder)
    if request.cert is None or request.key is None or request.token_file is None:
        raise ServeError(
            "a node needs --cert, --key and --token-file (nestfl serve with the folder of all "
            "parts makes them, for this machine)"
        )
    if request.threshold is not None:
        check_threshold(request.threshold)
    most = request.max_transfer
    if most is not None and not 0 <= most < math.inf:
        raise ServeError(f"--max-transfer {most}: expected samples a second, 0 or more")
    host, port = _listen(request.listen)
    token = read_token(request.token_file)
    parent_token = read_token(request.parent_token_file) if request.parent_token_file else token
    parents = dict(_parent(text, list(facts.parents)) for text in request.parent)
    _check_parents(request, list(facts.parents), parents)
    return ServeSettings(
        host=host,
        port=port,
        certificate=request.cert,
        key=request.key,
        token=token,
        authority=request.ca,
        parents={name: Address(url, parent_token) for name, url in parents.items()},
        parent_timeout=request.parent_timeout,
        half=request.half,
        max_transfer=request.max_transfer,
        threshold=request.threshold,
        batch=request.batch,
        wait=request.wait_ms / 1000,
        most_waiting=request.most_waiting,
        threads=request.threads,
    )


def read_token(file: Path) -> str:
    """Return the token in a file."""
    from inference.serving.settings import ServeError

    token = file.read_text().strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or any(map(str.isspace, token)):
        raise ServeError(
            f"{file} has no token: expected {SHORTEST_TOKEN} or more letters and digits, such as "
            "`openssl rand -hex 32` gives"
        )
    return token


def _listen(text: str) -> tuple[str, int]:
    from inference.serving.settings import ServeError

    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ServeError(f"--listen {text!r}: expected HOST:PORT, such as 127.0.0.1:8443")
    return host.strip("[]"), int(port)


def _parent(text: str, known: list[str]) -> tuple[str, str]:
    import httpx

    from inference.serving.settings import ServeError

    name, named, rest = text.partition("=https://")
    if not named and len(known) != 1:
        choices = ", ".join(known) or "none"
        raise ServeError(f"--parent {text!r}: expected NAME=https://HOST:PORT; parents: {choices}")
    name, url = (name, f"https://{rest}") if named else (known[0], text)
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme != "https" or not parsed.host:
        raise ServeError(f"--parent {text!r}: expected https://HOST:PORT")
    return name, url


def _check_parents(request: Request, known: list[str], given: dict[str, str]) -> None:
    """Raise if a parent has no address: all samples that are passed to it would be degraded."""
    from inference.serving.settings import ServeError

    if request.alone and given:
        raise ServeError("give one of --alone and --parent")
    lacking = ", ".join(name for name in known if name not in given)
    if lacking and not request.alone:
        raise ServeError(
            f"nothing says where {lacking} is: give --parent NAME=https://HOST:PORT for each "
            "parent, or --alone to do without"
        )


def _check_tree(request: Request) -> None:
    """Raise for options that apply to a single node only."""
    from inference.serving.settings import ServeError

    taken = ("folder", "listen", "half")
    given = [
        f"--{each.name.replace('_', '-')}"
        for each in fields(request)
        if each.name not in taken and getattr(request, each.name) != each.default
    ]
    if given:
        raise ServeError(
            f"{', '.join(given)} is for one node, and {request.folder} is no node's part: with the "
            "folder of all parts give --listen and --half only"
        )


def _replicas(text: str) -> tuple[int, int]:
    from inference.serving.settings import ServeError

    least, _, most = text.partition("..")
    try:
        found = int(least), int(most or least)
    except ValueError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1] <= THREADS.most:
        raise ServeError(f"--replicas {text!r}: expected a number, or a range such as 1..4")
    return found
