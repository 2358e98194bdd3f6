"""AdamW over named parameters, with moments that can be stored and loaded by name."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from models.training_data import Parameters


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
class Optimised:
    """A set of parameters and its AdamW moments.

    Attributes:
        parameters: Leaf tensors by name.
        optimiser: AdamW over them, in the same order.
        learning_rate: The full rate, after the ramp.
    """

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


def optimised(
    parameters: Mapping[str, Tensor],
    settings: OptimiserSettings,
    learning_rate: float,
    stored: Mapping[str, Tensor],
    *,
    prefix: str,
) -> Optimised:
    """Parameters with their stored moments, or fresh ones.

    Args:
        parameters: Initial values by name.
        settings: Of the optimiser.
        learning_rate: The full rate.
        stored: Moments as `moments_of` gave them; may be empty or hold those of other sets.
        prefix: Name of the set in `stored`.
    """
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
    return Optimised(dict(named), optimiser, learning_rate)


def moments_of(part: Optimised, *, prefix: str) -> dict[str, Tensor]:
    """The moments as tensors to store, `prefix.first.NAME` and so on."""
    kinds = {"step": "step", "first": "exp_avg", "second": "exp_avg_sq"}
    return {
        f"{prefix}.{kind}.{name}": part.optimiser.state[value][key].contiguous()
        for name, value in part.parameters.items()
        for kind, key in kinds.items()
        if value in part.optimiser.state
    }
