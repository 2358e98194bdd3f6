"""Generated levels are solvable, their lengths exact; the solver agrees with brute force."""

from collections import Counter, deque

import pytest

from envs.base import Split
from envs.errors import SolverLimitError, UnsatisfiableSettingsError
from envs.seeding import generator
from envs.sokoban_instances import SokobanSettings, draw_level
from envs.sokoban_levels import (
    Level,
    Room,
    carve_floor,
    cells_of,
    draw_room,
    reverse_play,
)
from envs.sokoban_solver import pushes_to_target, solve
from envs.splits import split_of

DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))


def brute_force_length(level: Level) -> int | None:
    """Breadth-first search over coordinates, written from the rules alone."""
    width = level.room.width

    def places(cells: int) -> frozenset[tuple[int, int]]:
        return frozenset(divmod(cell, width) for cell in cells_of(cells))

    walls, targets = places(level.room.walls), places(level.room.targets)
    start = (divmod(level.player, width), places(level.boxes))
    steps = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        (row, column), boxes = state
        if boxes == targets:
            return steps[state]
        for down, right in DIRECTIONS:
            ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
            moved = boxes
            if ahead in walls:
                continue
            if ahead in boxes:
                if beyond in walls or beyond in boxes:
                    continue
                moved = boxes - {ahead} | {beyond}
            if (ahead, moved) not in steps:
                steps[ahead, moved] = steps[state] + 1
                queue.append((ahead, moved))
    return None


@pytest.mark.parametrize(
    "settings",
    [
        SokobanSettings(),
        SokobanSettings(min_solution=2, max_solution=4),
        SokobanSettings(height=5, width=8, search_depth=300),
        SokobanSettings(height=6, width=6, boxes=2, search_depth=10),
    ],
    ids=["6x6", "short", "5x8", "two boxes"],
)
def test_every_level_is_solvable_in_exactly_its_length(settings):
    for seed in range(40):
        level = draw_level(settings, split=Split.TRAIN, seed=seed)
        assert level.length == brute_force_length(level)
        assert level.length >= settings.min_solution
        assert level.length <= (settings.max_solution or settings.search_depth)
        plan = solve(level.room, player=level.player, boxes=level.boxes)
        assert len(plan) == level.length


def test_the_solver_agrees_with_brute_force_on_arbitrary_states():
    draw = generator("test solver")
    answers = Counter()
    for _ in range(150):
        room = draw_room(draw, height=6, width=6, num_boxes=2)
        if room is None:
            continue
        free = list(cells_of(~room.walls & ((1 << 36) - 1)))
        player, *boxes = draw.sample(free, 3)
        level = Level(room=room, boxes=sum(1 << box for box in boxes), player=player)
        plan = solve(level.room, player=level.player, boxes=level.boxes)
        expected = brute_force_length(level)
        assert (None if plan is None else len(plan)) == expected
        answers[expected is None] += 1
    assert min(answers.values()) > 10  # both answers occur


def test_larger_levels_hold_two_boxes_and_are_solvable():
    settings = SokobanSettings(height=8, width=8, boxes=2, search_depth=10)
    for seed in range(30):
        level = draw_level(settings, split=Split.TRAIN, seed=seed)
        assert level.boxes.bit_count() == level.room.targets.bit_count() == 2
        assert len(solve(level.room, player=level.player, boxes=level.boxes)) == level.length


def test_reverse_play_finds_every_solvable_state_of_a_room():
    room = draw_room(generator("test reverse"), height=6, width=6, num_boxes=1)
    layers = reverse_play(room, depth=1_000)
    found = {state: depth for depth, layer in enumerate(layers) for state in layer}
    free = list(cells_of(~room.walls & ((1 << 36) - 1)))
    for player in free:
        for box in free:
            if box != player and 1 << box != room.targets:
                level = Level(room=room, boxes=1 << box, player=player)
                assert found.get((player, 1 << box)) == brute_force_length(level)


def test_a_carved_floor_is_connected_and_inside_the_border():
    for seed in range(200):
        floor = carve_floor(generator("test carve", seed), height=6, width=7)
        cells = set(cells_of(floor))
        assert all(0 < cell // 7 < 5 and 0 < cell % 7 < 6 for cell in cells)
        reached, frontier = set(), [min(cells)]
        while frontier:
            cell = frontier.pop()
            if cell in cells and cell not in reached:
                reached.add(cell)
                frontier += [cell - 7, cell + 7, cell - 1, cell + 1]
        assert reached == cells


def test_the_push_estimate_never_exceeds_the_length():
    for seed in range(50):
        level = draw_level(SokobanSettings(), split=Split.TRAIN, seed=seed)
        (box,) = cells_of(level.boxes)
        assert pushes_to_target(level.room)[box] <= level.length


def test_lengths_occur_evenly():
    settings = SokobanSettings(min_solution=2, max_solution=4)
    lengths = Counter(
        draw_level(settings, split=Split.EVALUATION, seed=seed).length for seed in range(600)
    )
    assert set(lengths) == {2, 3, 4}
    assert min(lengths.values()) > 120


def test_a_room_belongs_to_one_split_with_all_its_images():
    settings = SokobanSettings(min_solution=2, max_solution=4)
    rooms = {split: set() for split in Split}
    for split in Split:
        for seed in range(500):
            room = draw_level(settings, split=split, seed=seed).room
            assert split_of(room.key()) is split
            rooms[split].add(room.key())
    assert not rooms[Split.TRAIN] & rooms[Split.EVALUATION]


def test_the_solver_reports_its_bound():
    level = draw_level(SokobanSettings(min_solution=8), split=Split.TRAIN, seed=0)
    with pytest.raises(SolverLimitError, match="hint"):
        solve(level.room, player=level.player, boxes=level.boxes, state_limit=3)


def test_settings_that_no_level_meets_are_an_error_that_names_them():
    impossible = SokobanSettings(height=4, width=4, min_solution=25)
    with pytest.raises(UnsatisfiableSettingsError, match="4x4 level .* 25 to 30 actions"):
        draw_level(impossible, split=Split.TRAIN, seed=0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"min_solution": 5, "max_solution": 4}, "max_solution=4"),
        ({"min_solution": 31}, "search_depth=30"),
        ({"glyphs": "#_OX√P"}, "7 different signs"),
        ({"glyphs": "#_OX√PP"}, "7 different signs"),
        ({"glyphs": "#_OX√P "}, "none blank"),
        ({"height": 3}, "height"),
    ],
)
def test_bad_settings_are_refused_by_name(values, named):
    with pytest.raises(ValueError, match=named):
        SokobanSettings(**values)


def test_a_corner_box_has_no_solution():
    room = Room(height=3, width=6, walls=0b111111_100001_111111, targets=1 << 9)
    assert solve(room, player=8, boxes=1 << 7) is None
