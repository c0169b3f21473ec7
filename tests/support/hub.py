"""Serves the parts of Hugging Face that a download needs, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest


@contextmanager
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Publish the files of a folder for every model; yield the methods and paths asked for."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            if "/resolve/" in self.path:  # requests for a model's files, and no others
                asked.append((self.command, self.path))
            file = folder / self.path.rpartition("/")[2]
            self.send_response(200 if file.is_file() else 503)  # like a hub that is out of order
            self.send_header("Content-Length", str(file.stat().st_size if file.is_file() else 0))
            self.send_header("ETag", f'"{file.name}"')
            self.send_header("X-Repo-Commit", 40 * "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write((folder / self.path.rpartition("/")[2]).read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", here)
    published = here + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", published)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
