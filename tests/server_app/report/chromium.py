"""A headless Chromium that tests drive over its DevTools pipe, which takes no port and no library.

Commands and answers are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

PATIENCE = 60.0
"""Seconds that an answer may take on a busy machine."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
ON_THE_PIPE = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null'
"""Chromium reads commands from descriptor 3 and answers on 4: our pipes to it."""
COMPLAINTS = {"error", "warning", "assert"}


def chromium() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of a headless browser; `complaints` are its console's errors and warnings."""

    def __init__(self, program: str, profile: Path) -> None:
        """Start the browser with a new profile, and open an empty page."""
        self.complaints: list[str] = []
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        command = ("sh", "-c", ON_THE_PIPE, "sh", program, *FLAGS, f"--user-data-dir={profile}")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that its helpers end with it
        )
        try:
            self._open_page()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        commands = _pipe(self._process.stdin)
        commands.write(json.dumps(message).encode() + b"\0")
        commands.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def show(self, file: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file as a window of this size shows it, and wait until it is there."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=phone)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        gone = self.call("Page.navigate", url=file.resolve().as_uri())
        if "errorText" in gone:
            raise FileNotFoundError(f"{file}: {gone['errorText']}")
        while not self._loaded:
            self._next()

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def point_at(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the pointer over an element, to a share of its width and height."""
        place = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            f"return [b.left + {across} * b.width, b.top + {down} * b.height]; }})()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    def _open_page(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _next(self) -> dict[str, Any]:
        """Return the next message; keep what events tell."""
        answers, patient_until = _pipe(self._process.stdout), time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            left = patient_until - time.monotonic()
            ready, _, _ = select.select([answers], [], [], max(0.0, left))
            if not ready:
                raise TimeoutError(f"Chromium did not answer in {PATIENCE:g} s")
            got = os.read(answers.fileno(), 1 << 20)
            if not got:
                raise RuntimeError("Chromium has ended")
            self._unread += got
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._keep(message.get("method"), message.get("params", {}))
        return message

    def _keep(self, event: str | None, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in COMPLAINTS:
            self.complaints.append(told["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and told["type"] in COMPLAINTS:
            self.complaints.append(str(told["args"]))

    def _end(self) -> None:
        """End the browser and its helpers, which are a session of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
