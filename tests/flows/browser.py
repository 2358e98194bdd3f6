"""A headless Chromium for tests: opens pages, waits for text, and collects console errors."""

import base64
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PATIENCE_S = 60.0
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1400,1000",
)


def chromium() -> str | None:
    """The browser's command; None when it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Page:
    """A tab, by the DevTools protocol.

    Attributes:
        errors: Errors of the console and uncaught exceptions since the last `open`.
    """

    socket: ClientConnection
    errors: list[str] = field(default_factory=list)
    _number: int = 0

    def open(self, address: str) -> None:
        """Goes to an address."""
        self.errors.clear()
        self._call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def text(self) -> str:
        """What a reader sees."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def await_text(self, *texts: str) -> None:
        """Waits until the page shows all of the texts.

        Raises:
            AssertionError: It does not; with what it shows instead.
        """
        deadline = time.monotonic() + PATIENCE_S
        while missing := [text for text in texts if text not in self.text()]:
            if time.monotonic() > deadline:
                raise AssertionError(f"the page never shows {missing}, but:\n{self.text()}")
            time.sleep(0.2)  # the next look, not a guess of how long it takes

    def click(self, selector: str) -> None:
        """Clicks the first element that a CSS selector finds."""
        assert self.evaluate(
            f"(found => found ? (found.click(), true) : false)"
            f"(document.querySelector({json.dumps(selector)}))"
        ), f"nothing is `{selector}`"

    def click_text(self, text: str) -> None:
        """Waits for a button that reads exactly like this, and clicks the last one."""
        script = (
            "(found => found.length ? (found.at(-1).click(), true) : false)"
            "([...document.querySelectorAll('button, [role=menuitem], a')]"
            f".filter(item => item.innerText.trim() === {json.dumps(text)}))"
        )
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(script):
            assert time.monotonic() < deadline, f"no button reads `{text}`, but:\n{self.text()}"
            time.sleep(0.2)  # the next look

    def screenshot(self, file: Path) -> None:
        """Saves what a reader sees."""
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self.socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(PATIENCE_S))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if told["type"] == "error":
                self.errors.append(json.dumps(told["args"])[:500])
            case "Log.entryAdded" if told["entry"]["level"] == "error":
                self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with one tab; ends with the block.

    Args:
        profile: An empty folder for its user data.
    """
    command = [str(chromium()), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(_tab(profile, process), max_size=None) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                page._call(f"{domain}.enable")
            yield page
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _tab(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Address of the DevTools of the first tab."""
    import httpx

    note = profile / "DevToolsActivePort"
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the browser ended on its own"
        if note.exists() and note.read_text().count("\n"):
            port = note.read_text().splitlines()[0]
            tabs = httpx.get(f"http://127.0.0.1:{port}/json").json()
            pages = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
            if pages:
                return str(pages[0])
        time.sleep(0.1)  # the next look
    raise AssertionError("the browser does not answer")
