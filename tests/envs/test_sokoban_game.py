"""Sokoban: dynamics, rewards, texts and pictures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import Split
from envs.sokoban import Sokoban
from envs.sokoban_instances import SokobanSettings
from envs.tags import get_tag, make_environment


def from_text(tmp_path, text: str, **values) -> Sokoban:
    """Returns a Sokoban whose only training level is `text` (a second one is held out)."""
    path = tmp_path / "levels.txt"
    path.write_text(text)
    environment = Sokoban(SokobanSettings(levels_file=path, **values), split=Split.TRAIN)
    environment.reset(seed=0)
    return environment


def test_one_box_solved_in_n_actions_returns_11_minus_a_tenth_n():
    environment = make_environment(get_tag("SimpleSokoban"), split=Split.EVALUATION)
    lengths = set()
    for seed in range(100):
        environment.reset(seed=seed)
        total, steps, terminated = 0.0, 0, False
        while not terminated:
            _, reward, terminated, truncated, info = environment.step(environment.optimal_action())
            total, steps = total + reward, steps + 1
        assert environment.strata() == f"length {steps}"
        assert total == pytest.approx(11 - 0.1 * steps)
        assert (info["success"], truncated) == (1.0, False)
        lengths.add(steps)
    assert lengths == set(range(1, 11))


def test_covering_pays_one_and_uncovering_costs_one(tmp_path):
    environment = from_text(tmp_path, "########\n#.$@ * #\n#   $. #\n########\n")
    environment.reset(seed=0)
    rewards = [environment.step(action)[1] for action in ("Left", "Right", "Right", "Right")]
    assert rewards == pytest.approx([0.9, -0.1, -0.1, -1.1])


def test_a_blocked_move_changes_nothing_and_still_costs(tmp_path):
    environment = from_text(tmp_path, "######\n#@$ .#\n######\n")
    before = environment.observation()
    text, reward, terminated, truncated, info = environment.step("Up")
    assert (text, reward, terminated, truncated) == (before, -0.1, False, False)
    assert (info["action_valid"], info["action_effective"], info["success"]) == (1.0, 0.0, 0.0)


def test_a_box_is_not_pushed_into_a_box_or_a_wall(tmp_path):
    environment = from_text(
        tmp_path, "########\n#      #\n#@$$ ..#\n#      #\n#      #\n########\n"
    )
    assert environment.step("Right")[4]["action_effective"] == 0.0
    for action in ("Up", "Right", "Down", "Up", "Left", "Down", "Right"):
        effective = environment.step(action)[4]["action_effective"]
        assert effective == 1.0
    assert environment.observation().splitlines()[2:4] == ["#_PX_OO#", "#_X____#"]


def test_the_step_limit_truncates_and_is_no_success():
    environment = Sokoban(SokobanSettings(max_steps=3, min_solution=4))
    environment.reset(seed=0)
    outcomes = [environment.step("Up")[2:4] for _ in range(3)]
    assert outcomes == [(False, False), (False, False), (False, True)]


def test_the_signs_and_their_legend_follow_the_settings():
    default = make_environment(get_tag("SimpleSokoban"), split=Split.TRAIN)
    other = make_environment(get_tag("SokobanOtherGlyphs"), split=Split.TRAIN)
    for seed in range(20):
        text, _ = default.reset(seed=seed)
        renamed, _ = other.reset(seed=seed)
        assert renamed == text.translate(str.maketrans("#_OX√PS", "W.GBCA@"))
        assert set(text) <= set("#_OX√PS\n")
    assert other.legend().startswith("W wall, . floor, G target, B box")


def test_coordinates_name_the_cells_of_the_grid(tmp_path):
    environment = from_text(tmp_path, "######\n#@$ .#\n######\n", observation="grid_coord")
    assert environment.observation() == (
        "######\n#PX_O#\n######\n"
        "Board size: 3 rows, 6 columns\n"
        "Targets (row, column): [(1, 4)]\n"
        "Boxes not on a target: [(1, 2)]\n"
        "Boxes on a target: []\n"
        "Player: [(1, 1)]"
    )


def test_the_compact_text_names_places_and_neighbours(tmp_path):
    environment = from_text(tmp_path, "######\n#@$ .#\n#    #\n######\n")
    assert environment.compact() == ("P 1,1 Uw Df Lw Rb\nB 1,2 Uw Df Lp Rf\nT 1,4")


def test_the_trace_names_the_next_push(tmp_path):
    environment = from_text(tmp_path, "#######\n#  $ .#\n#@    #\n#######\n")
    assert environment.trace(["Up"]) == "at 1,2 push Right"
    environment.step("Up")
    assert environment.trace(["Right", "Right"]) == "at 1,2 push Right"


def test_the_trace_of_a_lost_level_is_where_the_actions_end(tmp_path):
    environment = from_text(tmp_path, "#######\n#  $@.#\n#     #\n#######\n")
    environment.step("Left")
    environment.step("Left")  # the box now stands in the corner
    assert environment.trace(["Right"]) == "go 1,3"


def test_the_picture_has_sixteen_pixels_a_cell_and_follows_the_state():
    environment = make_environment(get_tag("VisualSokoban"), split=Split.TRAIN)
    text, _ = environment.reset(seed=1)
    picture = environment.render()
    assert (picture.shape, picture.dtype) == ((96, 96, 3), np.uint8)
    assert "\n" in text
    environment.step(environment.optimal_action())
    assert not np.array_equal(picture, environment.render())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), moves=st.lists(st.integers(0, 3), max_size=30))
def test_walls_boxes_and_targets_are_conserved(seed, moves):
    environment = make_environment(get_tag("LargerSokoban"), split=Split.TRAIN)
    text, _ = environment.reset(seed=seed)

    def count(text: str) -> tuple[int, int, int, int]:
        return (
            text.count("#"),
            text.count("X") + text.count("√"),
            text.count("O") + text.count("√") + text.count("S"),
            text.count("P") + text.count("S"),
        )

    assert count(text) == (text.count("#"), 2, 2, 1)
    for move in moves:
        if environment.over:
            break
        after, *_ = environment.step(environment.action_names[move])
        assert count(after) == count(text)
