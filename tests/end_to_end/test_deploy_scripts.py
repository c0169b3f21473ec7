"""The scripts of deploy/ without Flower: certificates, keys, and checks of the link."""

from __future__ import annotations

import datetime
import http.server
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.deploy_scripts import DEPLOY, Scripts

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None,
    reason="there is no nginx on this machine",
)


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    running = Scripts(tmp_path / "state")
    yield running
    running.stop()


@pytest.fixture
def certified(scripts: Scripts) -> Scripts:
    code, said = scripts.run("certificates.sh", "127.0.0.1", "localhost")
    assert code == 0, said
    return scripts


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def belong_together(state: Path) -> bool:
    key = load_pem_private_key((state / "server.key").read_bytes(), None)
    return certificate(state / "server.pem").public_key() == key.public_key()


def test_a_certificate_is_renewed_by_the_same_authority(certified: Scripts) -> None:
    before = certified.files()
    assert set(before) == {"ca.key", "ca.crt", "server.key", "server.pem"}
    assert certified.run("certificates.sh", "example.org", DAYS="3")[0] == 0
    after = certified.files()
    assert {name: after[name] == before[name] for name in after} == {
        "ca.key": True,
        "ca.crt": True,
        "server.key": False,
        "server.pem": False,
    }
    assert belong_together(certified.state)
    renewed = certificate(certified.state / "server.pem")
    assert renewed.not_valid_after_utc - renewed.not_valid_before_utc == datetime.timedelta(3)


@pytest.mark.parametrize("days", ["abc", "0", "-1", "1.5", "1 2", "99999999"])
def test_wrong_days_are_told_and_leave_everything_as_it_was(certified: Scripts, days: str) -> None:
    before = certified.files()
    code, said = certified.run("certificates.sh", DAYS=days)
    assert code == 1
    assert said == f"DAYS is '{days}': expected a whole number from 1 to 9999\n"
    assert certified.files() == before
    assert belong_together(certified.state)


def test_what_openssl_refuses_is_shown_and_leaves_everything_as_it_was(certified: Scripts) -> None:
    before = certified.files()
    code, said = certified.run("certificates.sh", "999.1.1.1")
    assert code == 1
    assert "999.1.1.1" in said
    assert said.endswith("openssl x509 failed: nothing was changed\n")
    assert certified.files() == before
    assert [entry.name for entry in certified.state.iterdir() if entry.is_dir()] == []


@pytest.mark.parametrize("lost", ["ca.key", "ca.crt"])
def test_half_an_authority_is_not_replaced(certified: Scripts, lost: str) -> None:
    (certified.state / lost).unlink()
    before = certified.files()
    code, said = certified.run("certificates.sh")
    assert code == 1
    assert f"but no {lost}: bring it" in said
    assert certified.files() == before


def test_a_superlink_is_not_started_with_a_key_of_another_certificate(certified: Scripts) -> None:
    other = certified.state / "ca.key"
    (certified.state / "server.key").write_bytes(other.read_bytes())
    code, said = certified.run("superlink.sh")
    assert code == 1
    assert "server.key is not the key of server.pem: run deploy/certificates.sh again" in said


def test_private_keys_and_their_folders_are_their_owners_alone(certified: Scripts) -> None:
    assert certified.run("keys.sh", "phone")[0] == 0
    private = ["", "ca.key", "server.key", "nodes", "nodes/phone"]
    modes = [stat.S_IMODE((certified.state / name).stat().st_mode) for name in private]
    assert [mode & 0o077 for mode in modes] == [0] * len(private)


def test_a_device_gets_a_certificate_for_the_key_that_it_has(certified: Scripts) -> None:
    assert certified.run("keys.sh", "phone")[0] == 0
    nodes, before = certified.state / "nodes", certified.files()
    code, said = certified.run("certificates.sh", str(nodes / "phone.pub"), DAYS="3")
    assert (code, said) == (0, f"{nodes / 'phone.crt'}: for 3 days\n")
    assert certified.files() == before
    held = certificate(nodes / "phone.crt")
    assert held.public_key() == load_ssh_public_key((nodes / "phone.pub").read_bytes())
    held.verify_directly_issued_by(certificate(certified.state / "ca.crt"))
    uses = held.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_names_and_keys_are_not_certified_at_once(certified: Scripts) -> None:
    assert certified.run("keys.sh", "phone")[0] == 0
    key = str(certified.state / "nodes" / "phone.pub")
    assert certified.run("certificates.sh", "example.org", key) == (
        1,
        "names of the server, or keys of devices: not both\n",
    )
    (certified.state / "nodes" / "wrong.pub").write_text("no key")
    code, said = certified.run("certificates.sh", str(certified.state / "nodes" / "wrong.pub"))
    assert code == 1
    assert "wrong.pub is no public key of keys.sh" in said
    assert not (certified.state / "nodes" / "wrong.crt").exists()


@needs_nginx
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"CLIENT_CERTIFICATES": "yes"}, "CLIENT_CERTIFICATES is 'yes': expected on or off\n"),
        ({"BODY": "huge"}, '"client_max_body_size" directive invalid value'),
        ({"RATE": "fast"}, 'invalid rate "rate=fastr/s"'),
    ],
)
def test_a_wrong_setting_of_the_proxy_is_told(
    certified: Scripts, setting: dict[str, str], said: str
) -> None:
    code, told = certified.run("proxy.sh", **setting)
    assert code == 1
    assert said in told


# --- what is in the way of the link ----------------------------------------------------------


@contextmanager
def listening(
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    status: int = 401,
    clock: Callable[[], float] = time.time,
) -> Iterator[str]:
    """A server at a port of its own, of plain HTTP or behind TLS, with one answer to all."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(clock())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((host, 0), Answer) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield str(server.server_address[1])
        finally:
            server.shutdown()


def shifted(seconds: float) -> Callable[[], float]:
    """Return a clock that is so far ahead."""
    return lambda: time.time() + seconds


def server_of(state: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(state / "server.pem", state / "server.key")
    return tls


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def check(scripts: Scripts, port: str, host: str = "127.0.0.1", *more: str) -> tuple[int, str]:
    script, authority = str(DEPLOY / "check_link.py"), str(scripts.state / "ca.crt")
    command = [sys.executable, script, host, port, authority, *more]
    done = subprocess.run(command, env=scripts.environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_nothing_is_said_of_a_link_that_works(certified: Scripts) -> None:
    with listening(server_of(certified.state)) as port:
        assert check(certified, port) == (0, "")


def test_a_link_that_may_still_come_is_told_from_a_wrong_one(certified: Scripts) -> None:
    port = free_port()
    said = f"no SuperLink answers at 127.0.0.1:{port} (Connection refused)\n"
    assert check(certified, port) == (1, said)
    with listening() as port:
        code, said = check(certified, port)
    assert code == 2
    assert said.startswith(f"what listens at 127.0.0.1:{port} does not speak TLS")
    (certified.state / "ca.crt").unlink()
    code, said = check(certified, port)
    assert code == 2
    assert "ca.crt cannot be read" in said


def test_a_certificate_of_another_authority_is_told(certified: Scripts, tmp_path: Path) -> None:
    other = Scripts(tmp_path / "other")
    assert other.run("certificates.sh")[0] == 0
    with listening(server_of(other.state)) as port:
        code, said = check(certified, port)
    assert code == 2
    assert "has a certificate of another authority than" in said


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is there on Linux alone")
def test_a_certificate_without_the_name_is_told(scripts: Scripts) -> None:
    assert scripts.run("certificates.sh", "fleet.example.org")[0] == 0
    with listening(server_of(scripts.state), host="127.0.0.2") as port:
        code, said = check(scripts, port, "127.0.0.2")
    assert code == 2
    assert "has a certificate without the name 127.0.0.2: run deploy/certificates.sh" in said


def test_the_servers_own_machine_is_always_a_name_of_its_certificate(scripts: Scripts) -> None:
    code, said = scripts.run("certificates.sh", "fleet.example.org", "localhost")
    assert code == 0
    assert "server.pem: DNS:fleet.example.org DNS:localhost IP:127.0.0.1, for 90 days" in said


def test_a_proxy_that_asks_for_a_certificate_is_told_unless_there_is_one(
    certified: Scripts,
) -> None:
    with listening(server_of(certified.state), status=400) as port:
        code, said = check(certified, port)
        assert code == 2
        assert "asks for a certificate: make one from this device's public key" in said
        assert check(certified, port, "127.0.0.1", "--certified") == (0, "")


def test_a_superlink_of_another_user_is_told(certified: Scripts) -> None:
    with listening(server_of(certified.state), status=403) as port:
        code, said = check(certified, port)
    assert code == 2
    assert said.endswith("answers only to the user who started it\n")


def test_a_proxy_without_a_superlink_behind_it_may_still_get_one(certified: Scripts) -> None:
    with listening(server_of(certified.state), status=502) as port:
        said = f"the proxy at 127.0.0.1:{port} answers, but no SuperLink behind it\n"
        assert check(certified, port) == (1, said)


def test_a_certificate_that_has_expired_is_told(certified: Scripts) -> None:
    state, old = certified.state, datetime.datetime(2020, 1, 1)
    held = certificate(state / "server.pem")
    authority = load_pem_private_key((state / "ca.key").read_bytes(), None)
    builder = x509.CertificateBuilder(
        held.issuer, held.subject, held.public_key(), held.serial_number, old,
        old + datetime.timedelta(90), list(held.extensions),
    )  # fmt: skip
    expired = builder.sign(authority, hashes.SHA256())  # type: ignore[arg-type]
    pem = expired.public_bytes(Encoding.PEM)
    (state / "server.pem").write_bytes(pem)
    with listening(server_of(state)) as port:
        code, said = check(certified, port)
    assert code == 2
    assert "has a certificate that does not hold today (certificate has expired)" in said


@pytest.mark.parametrize("hours", [1, -1])
def test_clocks_that_are_an_hour_apart_are_told_with_both_times(
    certified: Scripts, hours: int
) -> None:
    with listening(server_of(certified.state), clock=shifted(3600 * hours)) as port:
        code, said = check(certified, port)
    assert code == 2
    times = [datetime.datetime.fromisoformat(t) for t in re.findall(r"\d+-\d+-\d+ [\d:]+", said)]
    apart = times[1] - times[0] - datetime.timedelta(hours=hours)
    assert abs(apart) < datetime.timedelta(minutes=5)
    assert said.endswith("set the wrong one (timedatectl set-ntp true)\n")
    assert said.count("\n") == 1


def test_clocks_that_flower_takes_are_not_told_of(certified: Scripts) -> None:
    """A device may be 5 s ahead of the server and 5 min behind."""
    for ahead in (2, -200):
        with listening(server_of(certified.state), clock=shifted(-ahead)) as port:
            assert check(certified, port) == (0, "")


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("supernode.sh", ["phone", "budget=1.0"]), ("register.sh", []), ("submit.sh", ["rounds=1"])],
)
def test_scripts_say_what_is_in_the_way_and_end(
    certified: Scripts, script: str, arguments: list[str]
) -> None:
    assert certified.run("keys.sh", "phone")[0] == 0
    with listening() as port:
        ports = {"LINK_PORT": port, "CONTROL_PORT": port}
        code, said = certified.run(script, *arguments, **ports, PATIENCE="0")
    assert code == 1
    assert f"what listens at 127.0.0.1:{port} does not speak TLS" in said.splitlines()[-1]


def test_a_node_waits_for_a_superlink_that_does_not_answer_and_says_so(certified: Scripts) -> None:
    assert certified.run("keys.sh", "phone")[0] == 0
    port = free_port()
    node = certified.start("supernode.sh", "phone", "budget=1.0", LINK_PORT=port, PATIENCE="0")
    assert node.stderr is not None
    said = f"no SuperLink answers at 127.0.0.1:{port} (Connection refused)"
    assert node.stderr.readline() == f"phone: {said}; trying again every 5 s\n"
    assert node.poll() is None
    node.send_signal(signal.SIGTERM)
    assert node.wait(30) == 0


def test_registering_without_keys_says_what_to_do(certified: Scripts) -> None:
    code, said = certified.run("register.sh")
    assert code == 1
    assert "nodes/*.pub: run deploy/keys.sh first" in said
