import io

import pytest
from rich.console import Console

from tasks.errors import SettingsError
from tasks.show import SAMPLED_STYLE, episode_json, episode_view, episodes_json, episodes_table
from tasks.trajectories import Status


@pytest.fixture
def shard(trajectory, as_shard):
    return as_shard(
        [trajectory(member=0), trajectory(member=1), trajectory(member=2, status=Status.ERRORED)]
    )


def _text(renderable) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(renderable)
    return console.file.getvalue()


def test_every_episode_is_listed_with_what_was_sampled(shard) -> None:
    rows = episodes_json(shard)
    assert [row["episode"] for row in rows] == ["g0/0", "g0/1", "g0/2"]
    assert {row["sampled_tokens"] for row in rows} == {5}
    assert "errored" in _text(episodes_table(shard))


@pytest.mark.parametrize("name", ["1", "g0/1"])
def test_E7_an_episode_is_found_by_number_or_id(shard, name: str) -> None:
    assert episode_json(shard, name)["member"] == 1
    assert "g0/1" in _text(episode_view(shard, name))


def test_E7_sampled_text_and_nothing_else_is_coloured(shard) -> None:
    body = episode_view(shard, "0").renderables[1].renderable
    coloured = [
        body.plain[span.start : span.end] for span in body.spans if span.style == SAMPLED_STYLE
    ]
    assert coloured == ["r"]


def test_an_errored_episode_shows_its_reason(shard) -> None:
    assert "server gone" in _text(episode_view(shard, "2"))


@pytest.mark.parametrize("name", ["3", "-1", "g9/0"])
def test_an_unknown_episode_is_refused_with_what_is_there(shard, name: str) -> None:
    with pytest.raises(SettingsError, match="a number from 0 to 2"):
        episode_json(shard, name)
