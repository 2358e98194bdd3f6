import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.server import prefect_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server of our own for the whole session: its API address."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as api:
        yield api.url


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a command with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return {**kept, "STARPO_HOME": str(tmp_path)}
