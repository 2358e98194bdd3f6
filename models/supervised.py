"""Supervised fitting of a policy to demonstrated replies: cross-entropy on the reply tokens."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.decoder import Decoder, DecoderConfig
from models.log_probs import packed_log_probs
from models.policy import build_decoder
from models.settings import SupervisedSettings


@dataclass(frozen=True)
class SupervisedSequence:
    """One demonstrated episode.

    Attributes:
        tokens: int32, [T].
        targets: Which tokens are to be learned, bool, [T]; never the first.
    """

    tokens: NDArray[np.int32]
    targets: NDArray[np.bool_]


@dataclass(frozen=True)
class SupervisedJob:
    """A lane's part of one step.

    Attributes:
        num_targets: Targets of the whole step, over all lanes.
    """

    config: DecoderConfig
    parameters: dict[str, NDArray[np.float32]]
    sequences: list[SupervisedSequence]
    num_targets: int


@dataclass(frozen=True)
class SupervisedResult:
    """Gradients by name and the lane's part of the mean loss."""

    gradients: dict[str, NDArray[np.float32]]
    loss: float


@dataclass(frozen=True)
class Fit:
    """Loss of each step, nats per target token."""

    losses: list[float]


Run = Callable[
    [Callable[[SupervisedJob], SupervisedResult], Sequence[SupervisedJob]], list[SupervisedResult]
]


def supervised_gradient(job: SupervisedJob) -> SupervisedResult:
    """Gradient of the mean cross-entropy of the step with respect to the parameters."""
    named = {name: torch.from_numpy(value) for name, value in job.parameters.items()}
    decoder = build_decoder(job.config, named)
    log_probs, _ = packed_log_probs(
        decoder,
        tokens=torch.from_numpy(np.concatenate([item.tokens for item in job.sequences])).long(),
        lengths=[len(item.tokens) for item in job.sequences],
        predict=torch.from_numpy(np.concatenate([item.targets for item in job.sequences])),
        temperature=1.0,
    )
    loss = -log_probs.sum() / job.num_targets
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: _gradient(value) for name, value in decoder.named_parameters()}
    return SupervisedResult(gradients, float(loss.detach()))


def fit_demonstrations(
    decoder: Decoder,
    sequences: Sequence[SupervisedSequence],
    *,
    settings: SupervisedSettings,
    seed: int,
    num_lanes: int,
    run: Run,
) -> Fit:
    """Fits the decoder in place; the result does not depend on who runs the lanes.

    Args:
        decoder: The policy.
        sequences: The demonstrations.
        settings: How.
        seed: Of the order of the demonstrations.
        num_lanes: Parts that each step is split into.
        run: Runs a function over the lanes' jobs, in order.
    """
    parameters = dict(decoder.named_parameters())
    optimiser = torch.optim.AdamW(
        parameters.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    order = np.random.default_rng(seed)
    batches = [
        permutation[start : start + settings.batch]
        for permutation in (order.permutation(len(sequences)) for _ in range(settings.epochs))
        for start in range(0, len(sequences), settings.batch)
    ]
    losses = []
    for step, batch in enumerate(batches):
        chosen = sorted((sequences[index] for index in batch), key=lambda item: len(item.tokens))
        jobs = [
            SupervisedJob(
                config=decoder.config,
                parameters={name: value.detach().numpy() for name, value in parameters.items()},
                sequences=chosen[lane::num_lanes],
                num_targets=sum(int(item.targets.sum()) for item in chosen),
            )
            for lane in range(min(num_lanes, len(chosen)))
        ]
        results = run(supervised_gradient, jobs)
        for name, value in parameters.items():
            value.grad = sum_in_order([result.gradients[name] for result in results])
        torch.nn.utils.clip_grad_norm_(parameters.values(), settings.max_gradient_norm)
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, len(batches), settings)
        optimiser.step()
        losses.append(sum(result.loss for result in results))
    return Fit(losses)


def sum_in_order(parts: Sequence[NDArray[np.float32]]) -> Tensor:
    """Sum of the lanes' parts, always in the same order."""
    total = torch.from_numpy(parts[0].copy())
    for part in parts[1:]:
        total += torch.from_numpy(part)
    return total


def _schedule(step: int, num_steps: int, settings: SupervisedSettings) -> float:
    """Linear ramp, then cosine to zero."""
    ramp = max(1, round(settings.ramp_share * num_steps))
    if step < ramp:
        return (step + 1) / ramp
    return 0.5 * (1 + math.cos(math.pi * (step - ramp) / max(1, num_steps - ramp)))


def _gradient(parameter: Tensor) -> NDArray[np.float32]:
    assert parameter.grad is not None, "every parameter has a gradient"  # noqa: S101
    gradient: NDArray[np.float32] = parameter.grad.numpy()
    return gradient
