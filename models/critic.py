"""The critic: a decoder of its own with a value head, initialised from the policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.decoder import Decoder, DecoderConfig
from models.folder import CRITIC_WEIGHTS
from models.policy import build_decoder, load_parameters

HEAD = "value_head.weight"
VALUE_TOKENS = 8192


class Critic(nn.Module):
    """Values of states: a decoder's hidden states and a linear head.

    Args:
        decoder: The trunk.
        head: Weight of the head, [1, W].
    """

    def __init__(self, decoder: Decoder, head: Tensor) -> None:
        super().__init__()
        self.decoder = decoder
        self.value_head = nn.Parameter(head)

    def values(self, tokens: Tensor, lengths: Sequence[int], *, at: Tensor | None = None) -> Tensor:
        """Values of the states after each token of packed sequences, [N], or `at` some, [M]."""
        hidden = self.decoder.hidden(tokens, lengths, at=at)
        return (hidden @ self.value_head.T).squeeze(-1)


def build_critic(config: DecoderConfig, parameters: Mapping[str, Tensor]) -> Critic:
    """A critic that uses the given tensors; `value_head.weight` is the head."""
    trunk = {name: value for name, value in parameters.items() if name != HEAD}
    return Critic(build_decoder(config, trunk), parameters[HEAD])


def critic_parameters(policy: Path) -> dict[str, Tensor]:
    """The critic's weights of a policy folder; a fresh critic where it has none.

    A fresh critic has the policy's trunk and a head of zeros, so its first values are 0.
    """
    stored = policy / CRITIC_WEIGHTS
    if stored.exists():
        parameters: dict[str, Tensor] = load_file(stored)
        return parameters
    width = DecoderConfig.from_folder(policy).hidden_size
    return {**load_parameters(policy), HEAD: torch.zeros(1, width)}


def save_critic(parameters: Mapping[str, Tensor], policy: Path) -> None:
    """Writes the critic of a policy folder."""
    (policy / CRITIC_WEIGHTS).parent.mkdir()
    contiguous = {name: value.detach().contiguous() for name, value in parameters.items()}
    save_file(contiguous, policy / CRITIC_WEIGHTS, metadata={"format": "pt"})


def load_critic(policy: Path) -> Critic:
    """The critic of a policy folder."""
    return build_critic(DecoderConfig.from_folder(policy), critic_parameters(policy))


def values_of(critic: Critic, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
    """Values before each token of each sequence, and after its last.

    Args:
        critic: The critic.
        sequences: Ids, [T] each.

    Returns:
        Float32, [T + 1] each; entry t is the value of the state before token t. The state before
        the first token is never acted in; its value is 0.
    """
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    found: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(sequences)
    with torch.inference_mode():
        while order:
            batch = [order.pop()]
            room = VALUE_TOKENS // len(sequences[batch[0]])
            batch += [order.pop() for _ in range(min(room - 1, len(order)))]
            lengths = [len(sequences[index]) for index in batch]
            tokens = torch.from_numpy(np.concatenate([sequences[index] for index in batch])).long()
            values = torch.split(critic.values(tokens, lengths), lengths)
            for index, after in zip(batch, values, strict=True):
                found[index] = np.concatenate([np.zeros(1, dtype=np.float32), after.numpy()])
    return found
