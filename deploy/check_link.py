"""Says in one line what is in the way to the SuperLink, over TLS and by the proxy before it.

    python3 check_link.py HOST PORT CA_CERTIFICATE [--certified]

Ends with 0 where nothing is, 1 where nothing answers yet, 2 where something is set up wrongly:
Flower itself would try again for ever in either case, and not say why.
"""

import http.client
import socket
import ssl
import sys
import time
from email.utils import parsedate_to_datetime
from urllib.request import getproxies, proxy_bypass

NOT_YET, WRONG = 1, 2
SECONDS = 10
NO_CERTIFICATE, NOT_OURS, NOBODY_BEHIND = 400, 403, (502, 503, 504)
AHEAD, BEHIND = 5, 300
"""Seconds that a device's clock may be off: Flower refuses what is signed by another one."""
OTHER_NAME, EXPIRED = (62, 64), (9, 10)  # OpenSSL's codes: names and addresses; not yet, no more


def complaint(host: str, port: int, authority: str, certified: bool) -> tuple[int, str]:
    """The exit code, and what is wrong."""
    where = f"{host}:{port}"
    if "https" in getproxies() and not proxy_bypass(host):
        return 0, ""  # Flower goes by the proxy, and this does not
    try:
        tls = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        return WRONG, f"{authority} cannot be read ({error}): copy the server's ca.crt there"
    try:
        with socket.create_connection((host, port), SECONDS) as link:
            try:
                safe = tls.wrap_socket(link, server_hostname=host)
            except ssl.SSLCertVerificationError as error:
                return WRONG, f"the SuperLink at {where} {_of_certificate(error, host, authority)}"
            except TimeoutError:
                return NOT_YET, f"what listens at {where} does not answer"
            except (ssl.SSLError, OSError):
                return WRONG, (
                    f"what listens at {where} does not speak TLS: is the SuperLink started with "
                    "--insecure, or is the port another program's?"
                )
            with safe:
                return _of_answer(safe, where, certified)
    except OSError as error:
        return NOT_YET, f"no SuperLink answers at {where} ({error.strerror or error})"


def _of_answer(link: ssl.SSLSocket, where: str, certified: bool) -> tuple[int, str]:
    """Ask as a node does, but for nothing: most answers of the SuperLink's are good ones."""
    request = f"POST /v1/fleet/get-run HTTP/1.1\r\nHost: {where}\r\nContent-Length: 0\r\n\r\n"
    link.sendall(request.encode())
    answer = http.client.HTTPResponse(link)
    try:
        answer.begin()
    except http.client.RemoteDisconnected as error:
        return NOT_YET, f"what listens at {where} does not answer ({error})"
    except http.client.HTTPException:
        return WRONG, f"what listens at {where} is no SuperLink"
    if answer.status in NOBODY_BEHIND:
        return NOT_YET, f"the proxy at {where} answers, but no SuperLink behind it"
    if answer.status == NO_CERTIFICATE and not certified:  # one cannot be shown from here
        return WRONG, (
            f"the proxy at {where} asks for a certificate: make one from this device's public key "
            "(deploy/certificates.sh NODE.pub), and put it beside the key"
        )
    if answer.status == NOT_OURS:
        return WRONG, f"the SuperLink at {where} answers only to the user who started it"
    return _of_clocks(answer.headers.get("Date"), where)


def _of_clocks(told: str | None, where: str) -> tuple[int, str]:
    """Compare this machine's clock with the one that the answer was sent by."""
    here = time.time()
    try:
        there = parsedate_to_datetime(told or "").timestamp()
    except (TypeError, ValueError):
        return 0, ""
    if -BEHIND <= here - there <= AHEAD + 1:  # the answer's time has no fractions
        return 0, ""
    clocks = [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(clock)) for clock in (here, there)]
    return WRONG, (
        f"the clock here shows {clocks[0]} UTC, and that of the SuperLink at {where} {clocks[1]} "
        f"UTC: it refuses nodes that are more than {AHEAD} s ahead or {BEHIND // 60} min behind; "
        "set the wrong one (timedatectl set-ntp true)"
    )


def _of_certificate(error: ssl.SSLCertVerificationError, host: str, authority: str) -> str:
    if error.verify_code in OTHER_NAME:
        return (
            f"has a certificate without the name {host}: run deploy/certificates.sh with every "
            "name that it is reached by, and start it again"
        )
    if error.verify_code in EXPIRED:
        return (
            f"has a certificate that does not hold today ({error.verify_message}): run "
            "deploy/certificates.sh there and start it again, or set this machine's clock"
        )
    return (
        f"has a certificate of another authority than {authority} ({error.verify_message}): "
        "copy the server's ca.crt there"
    )


if __name__ == "__main__":
    code, text = complaint(sys.argv[1], int(sys.argv[2]), sys.argv[3], len(sys.argv) > 4)
    if text:
        print(text)
    sys.exit(code)
