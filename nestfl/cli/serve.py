"""`nestfl serve`, and what it takes."""

from __future__ import annotations

from typing import Any

import click

from data.ranges import Range
from nestfl.cli.group import app
from nestfl.cli.options import A_SHARE, FILE, RATE, THREAD_COUNT, number, refuse, whole


@app.command(
    epilog="""\b
    Examples:
      nestfl serve parts
      nestfl serve parts/cloud --cert node.pem --key node.key --token-file token
      nestfl serve parts/device --parent https://edge.example:8443 --ca ca.pem ..."""
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
def serve(**request: Any) -> None:
    """Answer requests: run a node, or a whole tree of them on this machine."""
    from nestfl.commands import serve as server

    try:
        server.serve(server.Request(**request))
    except (ValueError, OSError) as error:
        refuse("serve", error)
