"""AdamW over named parameters, with moments that can be stored and loaded by name."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models.settings import OptimiserSettings
from models.training_data import Parameters


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
