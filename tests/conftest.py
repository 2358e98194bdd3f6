import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# before anything of ours is imported: tests never touch the checkout's store, servers or mlruns
os.environ["STARPO_HOME"] = tempfile.mkdtemp(prefix="starpo-tests-")

from flows import defaults
from flows.server import prefect_server

defaults.apply()

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("fixed")


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
