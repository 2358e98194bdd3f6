import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.gradients import RATIO_MAX
from models.trainer import _metrics
from tasks.evaluate import evaluation_metrics
from tasks.metrics import MEANINGS, markdown, meaning
from tasks.shards import Shard
from tasks.trajectories import Status, Trajectory

ROOT = Path(__file__).parents[2]
STAGES = "warmstart|rollout|filter|refill|advantage|update|evaluate|diagnose|train"
NAME = re.compile(rf"({STAGES})/[a-z_]+")
STEP = ("entropy", "clipped", "kl", "reference_kl", "value_error", "loss", "value_loss")
STEP += ("gradient_norm", "critic_gradient_norm", RATIO_MAX, "gap", "tokens")


def _literals() -> Iterator[str]:
    """The names of metrics that stand in the source."""
    for package in ("flows", "tasks", "models"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            formats = [node for node in nodes if isinstance(node, ast.JoinedStr)]
            parts = {id(part) for node in formats for part in node.values}
            for node in nodes:
                if isinstance(node, ast.Constant) and id(node) not in parts:
                    text = str(node.value)
                    yield from [text] if NAME.fullmatch(text) else []


def test_every_name_in_the_source_has_a_meaning() -> None:
    names = set(_literals())
    assert len(names) > 20
    assert [name for name in sorted(names) if meaning(name) is None] == []


def test_every_computed_name_has_a_meaning(
    trajectory: Callable[..., Trajectory], as_shard: Callable[[list[Trajectory]], Shard]
) -> None:
    members = [trajectory(member=index) for index in range(4)]
    members.append(trajectory(member=4, status=Status.TRUNCATED))
    step = dict.fromkeys(STEP, 1.0) | {"skipped": 0.0}
    names = set(evaluation_metrics(as_shard(members).table)) | set(_metrics([step], skipped=0))
    assert {"evaluate/pass@2", "evaluate/by/length 1/low", "update/value_error"} <= names
    assert [name for name in sorted(names) if meaning(name) is None] == []


@pytest.mark.parametrize(
    "name",
    [
        "update/nonsense",
        "success",
        "evaluate/pass@",
        "evaluate/pass@K",
        "evaluate/pass@two",
        "evaluate/by/KIND",
        "evaluate/by//success",
    ],
)
def test_an_unknown_name_has_none(name: str) -> None:
    assert meaning(name) is None


def test_names_and_meanings_are_well_formed() -> None:
    for name, text in MEANINGS.items():
        assert re.match(rf"({STAGES})/\S", name), name
        assert text == text.strip()
        assert text
        assert "\n" not in text


def test_the_page_of_metrics_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text() == markdown()
