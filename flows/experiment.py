"""Experiment: the stages' settings composed into one, from params.yaml and dotted overrides."""

import difflib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.defaults import ROOT
from flows.errors import ExperimentError
from flows.stop import StopSettings
from tasks.diagnose import DiagnoseSettings
from tasks.digest import digest_json
from tasks.environment import EnvironmentSettings
from tasks.estimates import AdvantageSettings
from tasks.evaluate import EvaluateSettings
from tasks.filter_rules import FilterSettings
from tasks.policy import PolicySettings
from tasks.rollout import RolloutSettings
from tasks.update import UpdateSettings
from tasks.warmstart import WarmstartSettings

PARAMS = ROOT / "params.yaml"


class Scale(StrEnum):
    """How large the policy and the budgets are."""

    NANO = "nano"
    """A tiny own policy; minutes on two CPU cores."""
    SMALL = "small"
    """A model of some hundred million parameters; hours on CPU cores, or one small GPU."""
    PAPER = "paper"
    """The model and budgets that were published; GPUs."""


class TrainSettings(BaseModel):
    """How long to train and how often to look."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iterations: int = Field(ge=0, description="Rounds of rollout, filter, advantage and update.")
    evaluate_every: int = Field(
        default=20, ge=1, description="Iterations between evaluations; the ends always have one."
    )
    diagnose_every: int = Field(default=10, ge=1, description="Iterations between diagnoses.")


class Experiment(BaseModel):
    """One experiment: everything that determines its results, nothing that does not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Shown in Prefect and MLflow; part of no address.")
    preset: str | None = Field(
        default=None, description="Named settings of params.yaml that were applied; others win."
    )
    seed: int = Field(ge=0, description="Every random draw of the experiment derives from it.")
    env: EnvironmentSettings
    policy: PolicySettings
    warmstart: WarmstartSettings
    rollout: RolloutSettings
    filter: FilterSettings
    advantage: AdvantageSettings
    update: UpdateSettings
    evaluate: EvaluateSettings
    diagnose: DiagnoseSettings
    train: TrainSettings
    stop: StopSettings = Field(default=StopSettings(), description="When a run is ended early.")

    @model_validator(mode="after")
    def _check(self) -> "Experiment":
        episodes = self.rollout.groups * self.rollout.group_size
        if self.advantage.compares_groups and self.rollout.group_size < 2:
            raise ValueError(
                f"`rollout.group_size` is {self.rollout.group_size}, but the estimator "
                f"`{self.advantage.estimator}` compares the members of a group\n"
                "hint: `rollout.group_size=8`, or `advantage.estimator=gae`"
            )
        if episodes % self.update.optimiser.mini_batches:
            raise ValueError(
                f"{episodes} episodes (`rollout.groups` x `rollout.group_size`) do not divide into "
                f"`update.optimiser.mini_batches` = {self.update.optimiser.mini_batches}"
            )
        return self

    @property
    def digest(self) -> str:
        """Identity of the experiment."""
        return digest_json(self.model_dump(mode="json"))

    def flat(self) -> dict[str, str | int | float | bool | list[str] | None]:
        """Every setting by its dotted name."""
        return dict(_flatten(self.model_dump(mode="json")))


def load_experiment(
    overrides: Mapping[str, Any] | None = None,
    *,
    scale: Scale = Scale.NANO,
    path: Path = PARAMS,
) -> Experiment:
    """Composes base, scale, the tag's own settings, the preset and overrides, in this order.

    Args:
        overrides: Values by dotted name, e.g. `{"env.tag": "Bandit", "train.iterations": 5}`.
        scale: Which scale of params.yaml.
        path: The parameter file.

    Raises:
        ExperimentError: With the key, the value found, what is allowed and how to mend it.
    """
    params = read_params(path)
    changes = _nest(overrides or {})
    tag = changes.get("env", {}).get("tag", params["base"]["env"]["tag"])
    preset = changes.get("preset", params["base"].get("preset"))
    if preset is not None and preset not in params["presets"]:
        known = ", ".join(params["presets"])
        raise ExperimentError(f"unknown preset `{preset}`\nhint: known are {known}")
    values: dict[str, Any] = {}
    layers = (
        params["base"],
        params["scales"][scale],
        params["tags"].get(scale, {}).get(tag, {}),
        params["presets"].get(preset, {}),
        changes,
    )
    for layer in layers:
        values = _merge(values, layer)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise ExperimentError(_explain(error)) from error


def parse_scale(name: str) -> Scale:
    """The scale of a name.

    Raises:
        ExperimentError: No such scale.
    """
    try:
        return Scale(name)
    except ValueError as error:
        known = ", ".join(Scale)
        raise ExperimentError(f"unknown scale `{name}`\nhint: known are {known}") from error


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """`key=value` arguments as a mapping; values are read as YAML.

    Raises:
        ExperimentError: An argument without `=`.
    """
    overrides: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise ExperimentError(
                f"`{argument}` is not an override\nhint: write `key=value`, e.g. `env.tag=Bandit`"
            )
        overrides[key] = yaml.safe_load(value)
    return overrides


def read_params(path: Path = PARAMS) -> dict[str, Any]:
    """The content of a parameter file.

    Raises:
        ExperimentError: It is missing, or no YAML.
    """
    try:
        params: dict[str, Any] = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ExperimentError(
            f"`{path}` is not there\nhint: run from a checkout of the project"
        ) from error
    except yaml.YAMLError as error:
        raise ExperimentError(f"`{path}` is not YAML: {error}") from error
    return params


def _nest(overrides: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in overrides.items():
        *parents, leaf = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ExperimentError(f"`{key}` and `{parent}` are both set")
        place[leaf] = _merge(place.get(leaf, {}), value) if isinstance(value, Mapping) else value
    return nested


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat += _flatten(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)]
    return flat


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = _known_keys(item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1, cutoff=0.6)
            guess = key.removesuffix(str(item["loc"][-1])) + near[0] if near else ""
            hint = f"did you mean `{guess}`?" if near else f"known here: {', '.join(known)}"
            lines.append(f"unknown setting `{key}`\nhint: {hint}")
        elif item["type"] == "missing":
            lines.append(f"`{key}` is missing\nhint: add it to params.yaml or write `{key}=…`")
        else:
            message = item["msg"].removeprefix("Value error, ")
            where = (
                f"`{key}` = {item['input']!r}: "
                if key and not isinstance(item["input"], dict)
                else ""
            )
            lines.append(where + message)
    return "\n".join(lines)


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Experiment
    for part in location:
        model = model.model_fields[str(part)].annotation
    return list(model.model_fields)
