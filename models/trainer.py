"""The trainer: mini-batches, lanes, gradient clipping and AdamW, the same bits on every run.

An optimiser step is split into lanes; their gradients are summed in lane order, so the number of
worker processes changes nothing. A step whose gradient is not finite is skipped and counted: the
weights never become NaN (G4).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.critic import critic_parameters, save_critic
from models.decoder import DecoderConfig
from models.errors import TrainingDataError
from models.gradients import RATIO_MAX, GradientJob, GradientResult, compute_gradient
from models.losses import LossSettings, Normaliser
from models.policy import load_parameters, save_next_policy, write_json
from models.rescoring import in_order, rescore, rescoring_jobs
from models.supervised import sum_in_order
from models.training_data import Parameters, TrainingSequence

OPTIMISER = Path("trainer") / "optimizer.safetensors"
STATE = Path("trainer") / "state.json"


class OptimiserSettings(BaseModel):
    """How the loss is minimised."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=7e-4, gt=0, description="AdamW, policy.")
    critic_learning_rate: float = Field(default=1e-3, gt=0, description="AdamW, critic.")
    ramp_updates: int = Field(
        default=10, ge=0, description="Updates over which the rates rise linearly."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW, first moment.")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="AdamW, second moment.")
    max_gradient_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled to it.")
    epochs: int = Field(default=1, ge=1, description="Passes over a rollout.")
    mini_batches: int = Field(default=2, ge=1, description="Optimiser steps per pass.")
    micro_tokens: int = Field(
        default=8192, ge=1, description="Most tokens per forward pass; changes only memory."
    )


@dataclass
class _Optimised:
    """A set of parameters and its AdamW moments."""

    parameters: dict[str, Tensor]
    optimiser: torch.optim.AdamW
    learning_rate: float

    def step(self, gradients: dict[str, Tensor], *, scale: float) -> None:
        """Takes one step with the learning rate scaled."""
        for name, value in self.parameters.items():
            value.grad = gradients[name]
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * scale
        self.optimiser.step()

    def arrays(self) -> Parameters:
        """The weights as the lanes get them."""
        return {name: value.detach().numpy() for name, value in self.parameters.items()}


Payload = TypeVar("Payload")
Result = TypeVar("Result")


class Run(Protocol):
    """Runs a function over the lanes' payloads and returns the results in their order."""

    def __call__(
        self, function: Callable[[Payload], Result], payloads: Sequence[Payload], /
    ) -> list[Result]:
        """`[function(payload) for payload in payloads]`, wherever it is computed."""


@dataclass
class TrainerState:
    """What an update starts from and leaves: weights, moments, and the number of updates."""

    config: DecoderConfig
    policy: _Optimised
    critic: _Optimised | None
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Number of updates so far."""
        return int(self.facts.get("version", 0))  # type: ignore[call-overload]


def load_state(folder: Path, *, settings: OptimiserSettings, with_critic: bool) -> TrainerState:
    """The trainer's state of a policy folder; fresh moments where it has none.

    Args:
        folder: A policy folder.
        settings: Of the optimiser.
        with_critic: Whether a critic is trained.
    """
    stored = load_file(folder / OPTIMISER) if (folder / OPTIMISER).exists() else {}
    facts = json.loads((folder / STATE).read_text()) if (folder / STATE).exists() else {}
    policy = _optimised(
        load_parameters(folder), settings, settings.learning_rate, stored, prefix="policy"
    )
    critic = None
    if with_critic:
        critic = _optimised(
            critic_parameters(folder),
            settings,
            settings.critic_learning_rate,
            stored,
            prefix="critic",
        )
    return TrainerState(DecoderConfig.from_folder(folder), policy, critic, facts)


def save_state(state: TrainerState, *, previous: Path, folder: Path) -> None:
    """Writes the next policy folder: weights, critic, moments and facts."""
    save_next_policy(previous, state.policy.parameters, folder)
    moments = _moments(state.policy, "policy")
    if state.critic is not None:
        save_critic(state.critic.parameters, folder)
        moments |= _moments(state.critic, "critic")
    (folder / "trainer").mkdir()
    save_file(moments, folder / OPTIMISER)
    write_json(folder / STATE, state.facts)


def update_policy(
    state: TrainerState,
    sequences: Sequence[TrainingSequence],
    *,
    loss: LossSettings,
    settings: OptimiserSettings,
    temperature: float,
    seed: int,
    num_lanes: int,
    run: Run,
    reference: Parameters | None = None,
) -> dict[str, float]:
    """Learns from sequences, changing the state in place.

    Args:
        state: Weights and moments; its version rises by one even when there is nothing to learn.
        sequences: What to learn from; may be empty.
        loss: The loss.
        settings: Of the optimiser.
        temperature: That of the sampling distribution.
        seed: Of the order of the sequences.
        num_lanes: Parts that each optimiser step is split into.
        run: Runs a function over the lanes' jobs, in order.
        reference: Weights of the reference policy by name; needed for a KL term.

    Returns:
        Metrics named `update/…`: means over the steps that were taken.

    Raises:
        TrainingDataError: The loss has a KL term and there is no reference.
    """
    sequences = _rescored(
        state,
        sequences,
        loss=loss,
        reference=reference,
        temperature=temperature,
        micro_tokens=settings.micro_tokens,
        num_lanes=num_lanes,
        run=run,
    )
    order = np.random.default_rng(seed)
    steps: list[dict[str, float]] = []
    skipped = 0
    ramp = min(1.0, (state.version + 1) / max(1, settings.ramp_updates))
    for _ in range(settings.epochs):
        for batch in np.array_split(order.permutation(len(sequences)), settings.mini_batches):
            if not batch.size:
                continue
            jobs = _jobs(
                state,
                [sequences[index] for index in batch],
                loss=loss,
                settings=settings,
                temperature=temperature,
                num_lanes=num_lanes,
            )
            numbers = _step(state, run(compute_gradient, jobs), settings=settings, scale=ramp)
            skipped += numbers["skipped"] > 0
            steps.append(numbers)
    state.facts["version"] = state.version + 1
    return _metrics(steps, skipped=skipped)


def _rescored(
    state: TrainerState,
    sequences: Sequence[TrainingSequence],
    *,
    loss: LossSettings,
    reference: Parameters | None,
    temperature: float,
    micro_tokens: int,
    num_lanes: int,
    run: Run,
) -> list[TrainingSequence]:
    """The sequences with the log-probs that the loss needs beyond the sampler's."""
    rescored = list(sequences)
    needed: dict[str, Parameters] = {}
    if loss.importance_cap is not None:
        needed["old_logprobs"] = state.policy.arrays()
    if loss.kl_coefficient:
        if reference is None:
            raise TrainingDataError(
                f"`kl_coefficient` is {loss.kl_coefficient}, but there is no reference policy\n"
                "hint: give one, or set `kl_coefficient` to 0"
            )
        needed["reference_logprobs"] = reference
    for name, parameters in needed.items():
        jobs = rescoring_jobs(
            rescored,
            parameters,
            config=state.config,
            temperature=temperature,
            micro_tokens=micro_tokens,
            num_lanes=num_lanes,
        )
        rows = in_order(run(rescore, jobs), num_sequences=len(rescored))
        rescored = [replace(item, **{name: row}) for item, row in zip(rescored, rows, strict=True)]
    return rescored


def _jobs(
    state: TrainerState,
    batch: list[TrainingSequence],
    *,
    loss: LossSettings,
    settings: OptimiserSettings,
    temperature: float,
    num_lanes: int,
) -> list[GradientJob]:
    """One job per lane; lanes get sequences of similar lengths in turn."""
    ordered = sorted(batch, key=lambda item: len(item.tokens))
    normaliser = normaliser_of(batch)
    critic = state.critic.arrays() if state.critic is not None else None
    return [
        GradientJob(
            config=state.config,
            parameters=state.policy.arrays(),
            critic=critic,
            sequences=ordered[lane::num_lanes],
            loss=loss,
            temperature=temperature,
            normaliser=normaliser,
            micro_tokens=settings.micro_tokens,
        )
        for lane in range(min(num_lanes, len(ordered)))
    ]


def normaliser_of(batch: Sequence[TrainingSequence]) -> Normaliser:
    """Sizes of an optimiser step."""
    return Normaliser.of(
        [int(item.sampled.sum()) for item in batch],
        weights=[item.weight for item in batch],
        longest=max((len(item.tokens) for item in batch if item.weight > 0), default=1),
    )


def _step(
    state: TrainerState,
    results: list[GradientResult],
    *,
    settings: OptimiserSettings,
    scale: float,
) -> dict[str, float]:
    """Sums the lanes' gradients in order and takes a step, unless they are not finite."""
    numbers: dict[str, float] = {"skipped": 0.0}
    for result in results:
        for name, value in result.sums.items():
            join = max if name == RATIO_MAX else float.__add__
            numbers[name] = join(numbers.get(name, 0.0), value)
    sets = [(state.policy, [result.gradients for result in results], "gradient_norm")]
    if state.critic is not None:
        critic_gradients = [result.critic_gradients for result in results]
        sets.append((state.critic, critic_gradients, "critic_gradient_norm"))
    summed = []
    for optimised, parts, norm_name in sets:
        gradients = {
            name: sum_in_order([part[name] for part in parts]) for name in optimised.parameters
        }
        norm = torch.nn.utils.get_total_norm(gradients.values())
        numbers[norm_name] = float(norm)
        factor = min(1.0, settings.max_gradient_norm / (float(norm) + 1e-6))
        summed.append((optimised, {name: value * factor for name, value in gradients.items()}))
    if all(np.isfinite(numbers[norm_name]) for _, _, norm_name in sets):
        for optimised, gradients in summed:
            optimised.step(gradients, scale=scale)
    else:
        numbers["skipped"] = 1.0
    return numbers


def _metrics(steps: list[dict[str, float]], *, skipped: int) -> dict[str, float]:
    """Means over the steps taken; numbers of skipped ones are not finite and only counted."""
    taken = [step for step in steps if not step["skipped"]]
    metrics = {
        "update/steps": float(len(taken)),
        "update/skipped_nonfinite": float(skipped),
        "update/skipped_empty": float(not steps),
    }
    if not taken:
        return metrics
    tokens = max(sum(step["tokens"] for step in taken), 1.0)
    for name in ("entropy", "clipped", "kl", "reference_kl", "value_error"):
        if name in taken[0]:
            metrics[f"update/{name}"] = sum(step[name] for step in taken) / tokens
    for name in ("loss", "value_loss", "gradient_norm", "critic_gradient_norm"):
        if name in taken[0]:
            metrics[f"update/{name}"] = float(np.mean([step[name] for step in taken]))
    metrics["update/ratio_max"] = max(step[RATIO_MAX] for step in taken)
    metrics["update/sampler_gap"] = taken[0]["gap"] / max(taken[0]["tokens"], 1.0)
    metrics["update/tokens"] = tokens
    return metrics


def _optimised(
    parameters: Mapping[str, Tensor],
    settings: OptimiserSettings,
    learning_rate: float,
    stored: Mapping[str, Tensor],
    *,
    prefix: str,
) -> _Optimised:
    named = {name: torch.nn.Parameter(value) for name, value in parameters.items()}
    optimiser = torch.optim.AdamW(
        named.values(),
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
    )
    for name, value in named.items():
        if f"{prefix}.step.{name}" in stored:
            optimiser.state[value] = {
                "step": stored[f"{prefix}.step.{name}"],
                "exp_avg": stored[f"{prefix}.first.{name}"],
                "exp_avg_sq": stored[f"{prefix}.second.{name}"],
            }
    return _Optimised(dict(named), optimiser, learning_rate)


def _moments(optimised: _Optimised, prefix: str) -> dict[str, Tensor]:
    kinds = {"step": "step", "first": "exp_avg", "second": "exp_avg_sq"}
    return {
        f"{prefix}.{kind}.{name}": optimised.optimiser.state[value][key].contiguous()
        for name, value in optimised.parameters.items()
        for kind, key in kinds.items()
        if value in optimised.optimiser.state
    }
