"""`nestfl-supernode` reads its arguments before Flower sees them."""

from __future__ import annotations

import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from nestfl.bundle import APP
from nestfl.guarded import supernode
from nestfl.guarded.own_user import own_port
from nestfl.guarded.pinned_code import fingerprint_of
from tests.support.deploy_scripts import Scripts


def given(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["nestfl-supernode", *arguments])


def test_all_arguments_but_the_certificate_are_flowers(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ["--superlink", "here:1", "--port", "12", "--node-config", "budget=1.0"]
    given(monkeypatch, "--client-certificate", "phone.crt", *theirs)
    ours, flowers = supernode.options()
    assert flowers == theirs
    assert (ours.client_certificate, ours.port, ours.node_config) == (
        Path("phone.crt"),
        12,
        "budget=1.0",
    )


def test_by_default_a_device_runs_its_own_code_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = fingerprint_of(APP)
    assert supernode.checked_code("budget=0.5") == own
    assert capsys.readouterr().out == f"this device runs {own}\n"
    supernode.checked_code('code="any"')
    assert capsys.readouterr().out == "this device runs any code\n"


@pytest.mark.parametrize("config", ['code="all"', "code=12", 'code=""', "code=true"])
def test_a_wrong_code_ends_it_at_the_start(config: str) -> None:
    with pytest.raises(SystemExit, match="expected fingerprints of 64 hexadecimal digits"):
        supernode.checked_code(config)


def test_a_secret_is_read_once_and_from_no_disk() -> None:
    path = Path(supernode.readable_once(b"secret"))
    assert path.read_bytes() == b"secret"
    assert path.read_bytes() == b""


def test_a_device_shows_its_certificate_to_who_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Scripts(tmp_path)
    for script, argument in (
        ("certificates.sh", "localhost"),
        ("keys.sh", "phone"),
        ("certificates.sh", str(tmp_path / "nodes" / "phone.pub")),
    ):
        assert scripts.run(script, argument)[0] == 0
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.crt")
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    seen = []

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.connection, ssl.SSLSocket)
            seen.append(self.connection.getpeercert())
            self.send_response(204)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Door) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        key = tmp_path / "nodes" / "phone"
        monkeypatch.setattr(httpx, "Client", httpx.Client)  # put back after
        given(
            monkeypatch,
            *("--client-certificate", str(key.with_suffix(".crt"))),
            *("--auth-supernode-private-key", str(key)),
            *("--root-certificates", str(tmp_path / "ca.crt")),
        )
        supernode.connect_patiently(supernode.certificate_of(supernode.options()[0]))
        with httpx.Client(verify=False, trust_env=False) as client:
            client.get(f"https://127.0.0.1:{server.server_address[1]}/")
        thread.join()
    assert seen[0]["subject"] == ((("commonName", "phone"),),)  # type: ignore[index]


def test_a_device_that_asks_too_much_comes_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower gives up after a 429, and waits after a 503."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(429)
            self.end_headers()

    monkeypatch.setattr(httpx, "Client", httpx.Client)  # put back after
    supernode.connect_patiently(None)
    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with httpx.Client(trust_env=False) as client:
            answer = client.get(f"http://127.0.0.1:{server.server_address[1]}/")
        thread.join()
    assert answer.status_code == 503
    with pytest.raises(httpx.HTTPStatusError, match="503"):
        answer.raise_for_status()


def test_a_port_of_another_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_port(0) as taken:
        port = taken.getsockname()[1]
        given(monkeypatch, "--port", str(port), "--node-config", 'code="any"')
        monkeypatch.setattr(sys, "path", [*sys.path])  # which it leaves without the app
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
        with pytest.raises(SystemExit, match=f"port {port} cannot be had"):
            supernode.main()
