"""The trainer: mini-batches, lanes, gradient clipping and AdamW, the same bits on every run.

An optimiser step is split into lanes; their gradients are summed in lane order, so the number of
worker processes changes nothing. A step whose gradient is not finite is skipped and counted: the
weights never become NaN (G4).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from models.critic import critic_parameters, save_critic
from models.decoder import DecoderConfig
from models.folder import OPTIMISER, STATE, write_json
from models.gradients import RATIO_MAX, GradientJob, GradientResult, compute_gradient
from models.lane_work import Run
from models.losses import Normaliser
from models.optimiser import Optimised, moments_of, optimised
from models.policy import load_parameters, save_next_policy
from models.rescoring import with_needed_log_probs
from models.settings import LossSettings, OptimiserSettings
from models.supervised import sum_in_order
from models.training_data import Parameters, TrainingSequence


@dataclass
class TrainerState:
    """What an update starts from and leaves: weights, moments, and the number of updates."""

    config: DecoderConfig
    policy: Optimised
    critic: Optimised | None
    facts: dict[str, int] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Number of updates so far."""
        return self.facts.get("version", 0)


def load_state(folder: Path, *, settings: OptimiserSettings, with_critic: bool) -> TrainerState:
    """The trainer's state of a policy folder; fresh moments where it has none.

    Args:
        folder: A policy folder.
        settings: Of the optimiser.
        with_critic: Whether a critic is trained.
    """
    stored = load_file(folder / OPTIMISER) if (folder / OPTIMISER).exists() else {}
    facts = json.loads((folder / STATE).read_text()) if (folder / STATE).exists() else {}
    policy = optimised(
        load_parameters(folder), settings, settings.learning_rate, stored, prefix="policy"
    )
    critic = None
    if with_critic:
        critic = optimised(
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
    moments = moments_of(state.policy, prefix="policy")
    if state.critic is not None:
        save_critic(state.critic.parameters, folder)
        moments |= moments_of(state.critic, prefix="critic")
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
    loss_scale: float = 1.0,
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
        loss_scale: Multiplies the policy's loss, for instance after filtering.

    Returns:
        Metrics named `update/…`: means over the steps that were taken.

    Raises:
        TrainingDataError: The loss has a KL term and there is no reference.
    """
    sequences = with_needed_log_probs(
        sequences,
        config=state.config,
        current=state.policy.arrays(),
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
                loss_scale=loss_scale,
            )
            numbers = _step(state, run(compute_gradient, jobs), settings=settings, scale=ramp)
            skipped += numbers["skipped"] > 0
            steps.append(numbers)
    state.facts["version"] = state.version + 1
    return _metrics(steps, skipped=skipped)


def _jobs(
    state: TrainerState,
    batch: list[TrainingSequence],
    *,
    loss: LossSettings,
    settings: OptimiserSettings,
    temperature: float,
    num_lanes: int,
    loss_scale: float,
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
            loss_scale=loss_scale,
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
    for part, lane_gradients, norm_name in sets:
        gradients = {
            name: sum_in_order([lane[name] for lane in lane_gradients]) for name in part.parameters
        }
        norm = torch.nn.utils.get_total_norm(gradients.values())
        numbers[norm_name] = float(norm)
        factor = min(1.0, settings.max_gradient_norm / (float(norm) + 1e-6))
        summed.append((part, {name: value * factor for name, value in gradients.items()}))
    if all(np.isfinite(numbers[norm_name]) for _, _, norm_name in sets):
        for part, gradients in summed:
            part.step(gradients, scale=scale)
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
