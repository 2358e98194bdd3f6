"""Speed of the environments on one core: a table of rates, with Gymnasium's own beside ours.

Run from the root of the repository: `python bench/environments.py`.
"""

import time
from collections.abc import Callable, Sequence

import gymnasium
from rich.console import Console
from rich.table import Table

from envs.base import Split
from envs.frozen_lake import FrozenLake, FrozenLakeSettings
from envs.seeding import generator
from envs.sokoban_instances import SokobanSettings, draw_level
from envs.sokoban_levels import draw_room, place_boxes
from envs.sokoban_solver import solve
from envs.tags import get_tag, make_environment

NUM_LEVELS = 3_000
NUM_STEPS = 60_000
NUM_ROUNDS = 5
SHORT_LAKE = ("SFFF", "FHFH", "FFFH", "HFFG")
"""Random play ends after about 8 steps here: resets, with a seed on both sides, weigh in."""
LONG_LAKE = ("S" + "F" * 15, *["F" * 16] * 14, "F" * 15 + "G")
"""Random play lasts long here: steps alone."""


def best_rate(work: Callable[[], int]) -> float:
    """Returns the best of several rounds, in things a second; `work` returns how many it did."""
    rates = []
    for _ in range(NUM_ROUNDS):
        start = time.perf_counter()
        number = work()
        rates.append(number / (time.perf_counter() - start))
    return max(rates)


def generate_levels() -> int:
    """Generates 6x6 one-box rooms without any choice by split or length."""
    draw = generator("bench")
    number = 0
    while number < NUM_LEVELS:
        room = draw_room(draw, height=6, width=6, num_boxes=1)
        if room is not None and place_boxes(draw, room=room, depth=300, shortest=1, longest=300):
            number += 1
    return number


def reset_short_levels() -> int:
    """Resets `ShortSokoban` to levels it has not seen: split and length by rejection."""
    environment = make_environment(get_tag("ShortSokoban"), split=Split.EVALUATION)
    draw_level.cache_clear()
    for seed in range(1_000):
        environment.reset(seed=seed)
    return 1_000


def solve_levels() -> int:
    """Solves 6x6 one-box levels of every length."""
    levels = [draw_level(SokobanSettings(), split=Split.TRAIN, seed=seed) for seed in range(500)]
    for level in levels:
        solve(level.room, player=level.player, boxes=level.boxes)
    return len(levels)


def step_frozen_lake(desc: Sequence[str]) -> int:
    """Steps our FrozenLake at random on a map, episodes restarted as they end."""
    environment = FrozenLake(FrozenLakeSettings(maps=(tuple(desc),)))
    draw = generator("bench")
    actions = draw.choices(environment.action_names, k=NUM_STEPS)
    environment.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            environment.reset(seed=0)
    return NUM_STEPS


def step_gymnasium(desc: Sequence[str]) -> int:
    """Steps Gymnasium's FrozenLake likewise, without the wrappers of `make`."""
    environment = gymnasium.make("FrozenLake-v1", desc=list(desc), success_rate=0.8).unwrapped
    actions = generator("bench").choices(range(4), k=NUM_STEPS)
    environment.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            environment.reset(seed=0)
    return NUM_STEPS


def step_sokoban() -> int:
    """Steps `SimpleSokoban` at random, episodes restarted as they end."""
    environment = make_environment(get_tag("SimpleSokoban"), split=Split.TRAIN)
    actions = generator("bench").choices(environment.action_names, k=NUM_STEPS // 4)
    environment.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            environment.reset(seed=0)
    return len(actions)


def main() -> None:
    """Measures and prints the table."""
    ours, theirs = (
        [best_rate(lambda desc=desc, step=step: step(desc)) for desc in (SHORT_LAKE, LONG_LAKE)]
        for step in (step_frozen_lake, step_gymnasium)
    )
    rows = [
        ("Sokoban 6x6, one box: levels generated", best_rate(generate_levels), ">= 800"),
        ("ShortSokoban: resets, split and length met", best_rate(reset_short_levels), ">= 100"),
        ("Sokoban 6x6, one box: levels solved", best_rate(solve_levels), ">= 500"),
        ("SimpleSokoban: steps", best_rate(step_sokoban), ""),
    ]
    for name, our_rate, their_rate in zip(("4x4", "open 16x16"), ours, theirs, strict=True):
        rows.append((f"FrozenLake {name}: steps", our_rate, ">= Gymnasium"))
        ratio = f"ours {our_rate / their_rate:.1f}x"
        rows.append((f"Gymnasium's FrozenLake {name}: steps", their_rate, ratio))
    table = Table("what", "per second", "target", title="Environments, one core")
    for what, rate, target in rows:
        table.add_row(what, f"{rate:,.0f}", target)
    Console().print(table)


if __name__ == "__main__":
    main()
