"""Speed of the environments on one core: a table of rates, with Gymnasium's own beside ours.

Run from the root of the repository: `python bench/environments.py`.
"""

import time
from collections.abc import Callable

import gymnasium
from rich.console import Console
from rich.table import Table

from envs.base import Split
from envs.frozen_lake import FrozenLake
from envs.seeding import generator
from envs.sokoban_instances import SokobanSettings, draw_level
from envs.sokoban_levels import draw_room, place_boxes
from envs.sokoban_solver import solve
from envs.tags import get_tag, make_environment

NUM_LEVELS = 3_000
NUM_STEPS = 60_000
NUM_ROUNDS = 5


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


def step_frozen_lake() -> int:
    """Steps our FrozenLake at random, episodes restarted as they end."""
    environment = FrozenLake()
    draw = generator("bench")
    actions = draw.choices(environment.action_names, k=NUM_STEPS)
    environment.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            environment.reset(seed=0)
    return NUM_STEPS


def step_gymnasium(*, wrapped: bool) -> int:
    """Steps Gymnasium's FrozenLake likewise, with `make`'s wrappers or bare."""
    made = gymnasium.make("FrozenLake-v1", success_rate=0.8)
    environment = made if wrapped else made.unwrapped
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
    ours, bare = best_rate(step_frozen_lake), best_rate(lambda: step_gymnasium(wrapped=False))
    wrapped = best_rate(lambda: step_gymnasium(wrapped=True))
    rows = [
        ("Sokoban 6x6, one box: levels generated", best_rate(generate_levels), ">= 800"),
        ("ShortSokoban: resets, split and length met", best_rate(reset_short_levels), ">= 100"),
        ("Sokoban 6x6, one box: levels solved", best_rate(solve_levels), ">= 500"),
        ("SimpleSokoban: steps", best_rate(step_sokoban), ""),
        ("FrozenLake: steps", ours, ">= Gymnasium"),
        ("Gymnasium FrozenLake, bare: steps", bare, f"ours {ours / bare:.1f}x"),
        ("Gymnasium FrozenLake, as made: steps", wrapped, f"ours {ours / wrapped:.1f}x"),
    ]
    table = Table("what", "per second", "target", title="Environments, one core")
    for what, rate, target in rows:
        table.add_row(what, f"{rate:,.0f}", target)
    Console().print(table)


if __name__ == "__main__":
    main()
