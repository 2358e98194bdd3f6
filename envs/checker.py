"""Checks of the shared contract, for the tests and for users who bring an environment.

The clauses: a seed determines the instance; seeds differ; the global generators are left alone;
numbers only in `info`; the end flags are apart; train and evaluation instances are disjoint.
"""

import random
from collections.abc import Callable, Sequence

import numpy as np

from envs.base import Split, TextEnvironment
from envs.errors import ContractError

Factory = Callable[[], TextEnvironment]
SplitFactory = Callable[[Split], TextEnvironment]


def _require(holds: bool, clause: str, *, hint: str) -> None:
    if not holds:
        raise ContractError(f"{clause}\nhint: {hint}")


def check_seeding(make: Factory, *, seeds: Sequence[int] = range(8)) -> None:
    """Checks that `reset(seed=s)` names the instance, in one and in separate environments.

    Raises:
        ContractError: Equal seeds gave different instances, or all seeds gave the same one.
    """
    one, other = make(), make()
    first = [(one.reset(seed=seed)[0], one.level()) for seed in seeds]
    again = [(other.reset(seed=seed)[0], other.level()) for seed in reversed(seeds)]
    for seed, before, after in zip(seeds, first, reversed(again), strict=True):
        _require(
            before == after,
            f"reset(seed={seed}) gave two instances: {before[0]!r} and {after[0]!r}",
            hint="draw the instance from `envs.seeding.generator(..., seed)` and nothing else",
        )
    _require(
        len(set(first)) > 1,
        f"reset ignores its seed: {len(first)} seeds gave the same instance {first[0][0]!r}",
        hint="draw the instance from `envs.seeding.generator(..., seed)`",
    )


def check_global_generators(make: Factory, *, seed: int = 0) -> None:
    """Checks that an episode leaves the global states of `random` and `numpy` as they were.

    Raises:
        ContractError: A global state moved.
    """

    def states() -> str:
        return repr((random.getstate(), np.random.get_state()))

    before = states()
    environment = make()
    environment.reset(seed=seed)
    for action in environment.action_names:
        if not environment.over:
            environment.step(action)
    _require(
        states() == before,
        "an episode moved the global state of `random` or `numpy.random`",
        hint="draw from `envs.seeding.generator`",
    )


def check_steps(make: Factory, *, seeds: Sequence[int] = range(8), num_steps: int = 60) -> None:
    """Plays at random and checks spaces, numbers, names and end flags.

    Raises:
        ContractError: A clause is broken; the text says which.
    """
    environment = make()
    for seed in seeds:
        draw = random.Random(seed)  # noqa: S311 - simulation, not secrets
        text, info = environment.reset(seed=seed)
        _check_outcome(environment, text=text, info=info)
        text_after, reward, terminated, truncated, info = environment.step("no such action")
        _require(
            (text_after, reward, terminated, truncated) == (text, 0.0, False, False)
            and info["action_valid"] == 0.0,
            "a step with an unknown name changed the state",
            hint="an unknown name costs nothing and is counted in `info['action_valid']`",
        )
        for _ in range(num_steps):
            action = draw.choice(environment.action_names)
            spelt = draw.choice((action, f" {action.upper()} ", action.lower()))
            text, _, terminated, truncated, info = environment.step(spelt)
            _check_outcome(environment, text=text, info=info)
            _require(
                not (terminated and truncated) and environment.over == (terminated or truncated),
                f"terminated={terminated} and truncated={truncated} at once, or `over` differs",
                hint="terminated: the task ended; truncated: a bound was met first",
            )
            if environment.over:
                break


def _check_outcome(environment: TextEnvironment, *, text: str, info: dict[str, float]) -> None:
    _require(
        text in environment.observation_space,
        f"observation {text!r} is outside the observation space",
        hint="give the signs in use as `extra_characters`",
    )
    wrong = {name: value for name, value in info.items() if type(value) is not float}
    _require(not wrong, f"info holds other things than numbers: {wrong}", hint="use floats")
    needed = {"action_valid", "action_effective", "success"} - info.keys()
    _require(not needed, f"info lacks {sorted(needed)}", hint="every step reports them")


def check_splits(make: SplitFactory, *, seeds: Sequence[int] = range(500)) -> None:
    """Checks that no instance occurs in both splits, up to symmetry.

    Raises:
        ContractError: An instance is in both.
    """
    train, evaluation = (_levels(make(split), seeds) for split in Split)
    shared = train & evaluation
    _require(
        not shared,
        f"{len(shared)} instances are in both splits, for instance {next(iter(shared), '')!r}",
        hint="accept a drawn instance when `envs.splits.split_of(key)` is the environment's split",
    )


def _levels(environment: TextEnvironment, seeds: Sequence[int]) -> set[str]:
    levels = set()
    for seed in seeds:
        environment.reset(seed=seed)
        levels.add(environment.level())
    return levels


def check_contract(make: SplitFactory) -> None:
    """Runs every check on an environment.

    Example:
        >>> from envs.tags import get_tag, make_environment
        >>> check_contract(lambda split: make_environment(get_tag("Bandit"), split=split))
    """
    for split in Split:
        check_seeding(lambda split=split: make(split))  # type: ignore[misc] # bound per loop
        check_global_generators(lambda split=split: make(split))  # type: ignore[misc] # as above
        check_steps(lambda split=split: make(split))  # type: ignore[misc] # as above
    check_splits(make)
