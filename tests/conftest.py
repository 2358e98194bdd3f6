import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# before anything of ours is imported: tests never touch the checkout's store, servers or mlruns
os.environ["STARPO_HOME"] = tempfile.mkdtemp(prefix="starpo-tests-")

from flows import defaults
from flows.server import prefect_server

for place in defaults.PLACES:  # a worker of xdist inherits those of the process that started it
    os.environ.pop(place, None)
defaults.apply()

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server of our own for the whole session: its API address."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as api:
        yield api.url


@pytest.fixture(scope="session")
def environment_of() -> Callable[[Path], dict[str, str]]:
    """The environment of a command with that folder as its home."""

    def environment(home: Path) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in defaults.PLACES and not name.startswith("PREFECT_")
        }
        return {**kept, "STARPO_HOME": str(home)}

    return environment


@pytest.fixture
def home(tmp_path: Path, environment_of: Callable[[Path], dict[str, str]]) -> dict[str, str]:
    """The environment of a command with a home of its own."""
    return environment_of(tmp_path)
