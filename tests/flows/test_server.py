import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows.errors import ServerError
from flows.server import OwnServer, announced, free_port, prefect_server, services_url


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def answering() -> Iterator[str]:
    """An API address that answers health checks, so that the note about it decides."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api"
        server.shutdown()


def test_a_free_port_is_the_preferred_one_unless_taken() -> None:
    preferred = free_port()
    assert free_port(preferred) == preferred
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket, sys\n"
            f"s = socket.create_server(('127.0.0.1', {preferred}))\n"
            "print('listens', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as listener:
        assert listener.stdout.readline() == "listens\n"
        assert free_port(preferred) != preferred
        listener.communicate("")


def test_other_commands_find_announced_services(tmp_path: Path, answering: str) -> None:
    assert services_url(tmp_path) is None
    with announced(tmp_path, {"prefect": answering}):
        assert services_url(tmp_path) == answering
    assert services_url(tmp_path) is None
    assert list((tmp_path / ".starpo").iterdir()) == []


def test_announced_services_without_prefect_offer_no_api(tmp_path: Path, answering: str) -> None:
    with announced(tmp_path, {"mlflow": answering}):
        assert services_url(tmp_path) is None


def test_an_announced_server_that_does_not_answer_is_not_used(tmp_path: Path) -> None:
    with announced(tmp_path, {"prefect": f"http://127.0.0.1:{free_port()}/api"}):
        assert services_url(tmp_path) is None


def test_a_second_announcement_is_refused_and_the_first_kept(
    tmp_path: Path, answering: str
) -> None:
    with announced(tmp_path, {"prefect": answering}):
        with (
            pytest.raises(ServerError, match="already up.*\nhint: "),
            announced(tmp_path, {"prefect": "http://127.0.0.1:1/api"}),
        ):
            pytest.fail("a second one was let in")
        assert services_url(tmp_path) == answering


def test_C6_the_note_of_a_killed_process_is_ignored(tmp_path: Path, answering: str) -> None:
    program = f"""
import os, signal
from pathlib import Path
from flows.server import announced
with announced(Path({str(tmp_path)!r}), {{"prefect": {answering!r}}}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert (tmp_path / ".starpo" / "services.json").exists()
    assert services_url(tmp_path) is None
    with announced(tmp_path, {"prefect": answering}):
        assert services_url(tmp_path) == answering


def test_a_configured_server_that_does_not_answer_stops_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    with pytest.raises(ServerError, match=f"{url}\nhint: "), prefect_server(tmp_path):
        pytest.fail("it was let through")


@pytest.mark.server
def test_two_first_commands_at_once_start_their_servers_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))  # no database yet

    def start(name: str) -> tuple[float, float]:
        server = OwnServer(tmp_path / name, port=free_port(), environment={})
        try:
            begun = time.monotonic()
            server.wait()
            return begun, time.monotonic()
        finally:
            server.stop()

    with ThreadPoolExecutor(2) as threads:
        (_, ready), (begun, _) = sorted(threads.map(start, ("one", "two")))
    assert begun >= ready


@pytest.mark.server
def test_a_flow_on_a_server_of_our_own_takes_no_heartbeat_second(server: str) -> None:
    from prefect.settings import PREFECT_API_URL, get_current_settings

    assert PREFECT_API_URL.value() == server
    assert get_current_settings().flows.heartbeat_frequency is None
