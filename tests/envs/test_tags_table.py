"""The table of tags: names, overrides and their errors."""

import pytest

from envs.base import Split
from envs.errors import EnvsError, TagSettingsError, UnknownTagError
from envs.prompts import PromptStyle
from envs.tags import TAGS, Tag, get_tag, make_environment

EXPECTED = {
    "Bandit",
    "BanditReversed",
    "SimpleSokoban",
    "CoordSokoban",
    "LargerSokoban",
    "SokobanOtherGlyphs",
    "VisualSokoban",
    "ShortSokoban",
    "FrozenLake",
    "CoordFrozenLake",
}


def test_every_tag_is_there_under_its_name():
    assert set(TAGS) == EXPECTED
    assert all(tag.name == name for name, tag in TAGS.items())


@pytest.mark.parametrize("name", sorted(EXPECTED))
@pytest.mark.parametrize("style", list(PromptStyle))
def test_every_tag_starts_in_both_styles(name, style):
    tag = get_tag(name).with_overrides(prompt=style)
    for split in Split:
        environment = make_environment(tag, split=split)
        environment.reset(seed=0)
        assert environment.optimal_action() in environment.action_names


def test_an_unknown_tag_gets_a_suggestion_and_the_list():
    with pytest.raises(UnknownTagError, match="did you mean `ShortSokoban`") as caught:
        get_tag("ShortSokobn")
    assert "FrozenLake" in str(caught.value)
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, EnvsError)


def test_an_unknown_setting_is_named_with_the_allowed_ones():
    with pytest.raises(TagSettingsError, match="unknown setting `heigth` .*") as caught:
        get_tag("ShortSokoban").with_overrides(settings={"heigth": 7})
    assert "`search_depth`" in str(caught.value)


def test_a_value_out_of_range_is_named():
    with pytest.raises(TagSettingsError, match="setting `intended_probability`=2"):
        get_tag("FrozenLake").with_overrides(settings={"intended_probability": 2})


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"max_turns": 0}, "max_turns=0"),
        ({"max_actions": True}, "max_actions=True"),
        ({"max_actions": 1}, "max_actions_per_turn=2 exceeds max_actions=1"),
        ({"prompt": "tiny"}, "prompt=`tiny`"),
        ({"settings": {"min_solution": 9}}, "min_solution=9 exceeds max_solution=4"),
    ],
)
def test_a_bad_override_is_refused_by_name(overrides, named):
    with pytest.raises(TagSettingsError, match=named):
        get_tag("ShortSokoban").with_overrides(**overrides)


def test_overrides_replace_what_they_name_and_nothing_else():
    tag = get_tag("ShortSokoban")
    changed = tag.with_overrides(settings={"max_solution": 3}, max_turns=2)
    assert changed.settings == {"min_solution": 2, "max_solution": 3}
    assert (changed.max_turns, changed.max_actions, tag.max_turns) == (2, 10, 5)
    assert tag.settings == {"min_solution": 2, "max_solution": 4}


def test_an_environment_that_nobody_registered_is_named():
    with pytest.raises(TagSettingsError, match="`starpo/Chess-v0` is no registered"):
        Tag(name="Chess", environment="starpo/Chess-v0", settings={}, instruction="")
