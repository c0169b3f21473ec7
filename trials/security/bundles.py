"""Makes the apps that are sent to devices: a harmless one, and one that must never run."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_files

PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "For trials/security"
license = {{text = "Apache-2.0"}}

[tool.flwr.app]
publisher = "nestfl"

[tool.flwr.app.components]
serverapp = "small_server:app"
clientapp = "small_client:app"

[tool.flwr.app.config]
seconds = 20
told = ""
"""
SERVER = """\
import json
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    messages = [
        Message(RecordDict({"slice": ConfigRecord({"secret": f"slice of {node}"})}), node, "train")
        for node in grid.get_node_ids()
    ]
    replies = grid.send_and_receive(messages, timeout=context.run_config["seconds"])
    told = [
        [r.metadata.src_node_id, r.error.reason if r.has_error() else str(r.content)]
        for r in replies
    ]
    if context.run_config["told"]:
        Path(context.run_config["told"]).write_text(json.dumps(told))
"""
CLIENT = """\
import time

from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    time.sleep(2)
    return Message(message.content, reply_to=message)
"""


def bundle(client: str = CLIENT, name: str = "small") -> bytes:
    files = {
        "pyproject.toml": PROJECT.format(name=name).encode(),
        "small_server.py": SERVER.encode(),
        "small_client.py": client.encode(),
    }
    return build_fab_from_files(files)[0]


def evil(marker: Path) -> bytes:
    """Return an app that writes a file on any device that imports it."""
    return bundle(f"open({str(marker)!r}, 'w').close()\n{CLIENT}")


def packed_again(fab: bytes, comment: str) -> bytes:
    """Return a bundle of the same files under another hash."""
    found = io.BytesIO(fab)
    with zipfile.ZipFile(found, "a") as archive:
        archive.comment = comment.encode()
    return found.getvalue()
