"""Sweeps: named studies of params.yaml as arms, each an experiment with a few changes."""

import itertools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.errors import ExperimentError
from flows.experiment import Experiment, Scale, load_experiment, read_params


class Expectation(StrEnum):
    """What the hypothesis says of an arm's metric, compared with the reference arm's."""

    HIGHER = "higher"
    LOWER = "lower"


class ScaleChanges(BaseModel):
    """What a scale changes in a sweep."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: dict[str, Any] = Field(default_factory=dict, description="Further changes of all arms.")
    arms: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="By name, the arms that are defined otherwise."
    )


class SweepSettings(BaseModel):
    """A sweep as it stands in params.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hypothesis: str = Field(description="What is expected, in one sentence.")
    published: str = Field(default="", description="What the paper published.")
    finding: int | None = Field(
        default=None, description="Number of the published finding that it tests."
    )
    base: dict[str, Any] = Field(default_factory=dict, description="Changes that all arms share.")
    blocks: dict[str, dict[str, Any]] = Field(
        default={"": {}},
        min_length=1,
        description="Every arm is run in each block, e.g. an environment, and compared there.",
    )
    grid: dict[str, list[Any]] = Field(
        default_factory=dict, description="Arms: every combination of these values."
    )
    arms: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Arms by name, where a grid does not serve."
    )
    reference: str = Field(description="Name of the arm that the others are compared with.")
    metric: str = Field(
        default="evaluate/success",
        description="What is compared: a metric's last value, or curve/final, peak, area, drop.",
    )
    expect: dict[str, Expectation] = Field(
        default_factory=dict, description="By arm: higher or lower than the reference."
    )
    seeds: int = Field(ge=2, description="Seeds 0 to seeds - 1; `study.seeds` when not given.")
    scales: dict[Scale, ScaleChanges] = Field(
        default_factory=dict, description="Changes at the scales beyond nano that it is defined at."
    )

    @model_validator(mode="after")
    def _check(self) -> "SweepSettings":
        if bool(self.grid) == bool(self.arms):
            raise ValueError("give `grid` or `arms`, one of the two")
        known = list(arm_changes(self))
        for changes in self.scales.values():
            if not set(changes.arms) <= set(self.arms):
                raise ValueError(f"a scale may change the arms {', '.join(self.arms) or 'none'}")
        if self.reference not in known:
            raise ValueError(f"no arm `{self.reference}`; the arms are {', '.join(known)}")
        known = [arm_name(block, arm) for block in self.blocks for arm in known]
        for name in self.expect:
            if name not in known:
                raise ValueError(f"no arm `{name}`; the arms are {', '.join(known)}")
        return self


def arm_name(block: str, arm: str) -> str:
    """Name of an arm in a block: both, separated by a space; the arm's own where all are one."""
    return f"{block} {arm}".strip()


class Arm(BaseModel):
    """One arm: its name, the arm that it is compared with, and the overrides that make it."""

    model_config = ConfigDict(frozen=True)

    name: str
    reference: str
    overrides: dict[str, Any]

    def experiment(self, *, seed: int, scale: Scale) -> Experiment:
        """The arm's experiment for a seed."""
        return load_experiment({**self.overrides, "seed": seed}, scale=scale)


class Sweep(BaseModel):
    """A sweep at a scale, with validated arms."""

    model_config = ConfigDict(frozen=True)

    name: str
    scale: Scale
    settings: SweepSettings
    arms: list[Arm]


def arm_changes(settings: SweepSettings, *, scale: Scale = Scale.NANO) -> dict[str, dict[str, Any]]:
    """What each arm changes, by its stable name: for a grid, its values joined by spaces."""
    if settings.arms:
        return {**settings.arms, **settings.scales.get(scale, ScaleChanges()).arms}
    keys = list(settings.grid)
    return {
        " ".join(str(value) for value in values): dict(zip(keys, values, strict=True))
        for values in itertools.product(*settings.grid.values())
    }


def sweep_names() -> list[str]:
    """Names of all sweeps of params.yaml."""
    return list(read_params()["sweeps"])


def load_definition(name: str) -> SweepSettings:
    """A sweep as params.yaml defines it.

    Raises:
        ExperimentError: An unknown name, or a bad definition.
    """
    params = read_params()
    sweeps = params["sweeps"]
    if name not in sweeps:
        raise ExperimentError(f"unknown sweep `{name}`\nhint: known are {', '.join(sweeps)}")
    try:
        return SweepSettings.model_validate({"seeds": params["study"]["seeds"], **sweeps[name]})
    except ValidationError as error:
        text = "; ".join(str(item["msg"]) for item in error.errors())
        raise ExperimentError(f"sweep `{name}` of params.yaml: {text}") from error


def load_sweep(name: str, *, scale: Scale = Scale.NANO) -> Sweep:
    """A sweep with its arms, each checked as an experiment.

    Raises:
        ExperimentError: An unknown name, a bad definition, a scale that it is not defined at, or an
            arm with a bad setting.
    """
    settings = load_definition(name)
    if scale is not Scale.NANO and scale not in settings.scales:
        known = ", ".join([Scale.NANO, *settings.scales])
        raise ExperimentError(f"sweep `{name}` is not defined at scale `{scale}`\nhint: {known}")
    shared = {**settings.base, **settings.scales.get(scale, ScaleChanges()).base}
    arms = [
        Arm(
            name=arm_name(block, arm),
            reference=arm_name(block, settings.reference),
            overrides={**shared, **common, **changes},
        )
        for block, common in settings.blocks.items()
        for arm, changes in arm_changes(settings, scale=scale).items()
    ]
    for arm in arms:
        arm.experiment(seed=0, scale=scale)
    return Sweep(name=name, scale=scale, settings=settings, arms=arms)


def published_findings() -> dict[int, str]:
    """The published findings by number."""
    findings: dict[int, str] = read_params()["findings"]
    return findings


def chosen_arms(sweep: Sweep, names: list[str] | None) -> list[Arm]:
    """The arms of these names, and the arms that they are compared with.

    Raises:
        ExperimentError: There is no such arm.
    """
    if not names:
        return sweep.arms
    known: Mapping[str, Arm] = {arm.name: arm for arm in sweep.arms}
    for name in names:
        if name not in known:
            raise ExperimentError(
                f"sweep `{sweep.name}` has no arm `{name}`\nhint: its arms are {', '.join(known)}"
            )
    wanted = {*names, *(known[name].reference for name in names)}
    return [arm for arm in sweep.arms if arm.name in wanted]
