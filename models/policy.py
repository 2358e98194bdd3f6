"""Policies: plain Hugging Face folders, read and written with the same bytes every time."""

import errno
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.decoder import Decoder, DecoderConfig
from models.errors import PolicyFolderError
from models.folder import WEIGHTS, write_json


@dataclass
class Policy:
    """A policy in memory.

    Attributes:
        decoder: The network.
        tokenizer: Its tokenizer, with the chat template.
        configuration: Content of `config.json`.
        generation: Content of `generation_config.json`.
    """

    decoder: Decoder
    tokenizer: PreTrainedTokenizerFast
    configuration: Mapping[str, object]
    generation: Mapping[str, object]


def save_policy(policy: Policy, folder: Path) -> None:
    """Writes a policy to a new folder."""
    folder.mkdir(parents=True)
    policy.tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", policy.configuration)
    write_json(folder / "generation_config.json", policy.generation)
    save_weights(policy.decoder.state_dict(), folder)


def save_next_policy(previous: Path, parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Writes the policy that follows another: new weights, all other files byte for byte the same.

    Args:
        previous: Folder of the policy before the update.
        parameters: The new weights by name.
        folder: New folder; gets neither `trainer/` nor `critic/`. Files that stay the same are
            hard links where both folders are on one disk.
    """
    folder.mkdir(parents=True)
    for file in previous.iterdir():
        if file.is_file() and file.name != WEIGHTS:
            _link(file, folder / file.name)
    save_weights(parameters, folder)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # another disk
            raise
        shutil.copy(source, target)


def save_weights(parameters: Mapping[str, Tensor], folder: Path) -> None:
    """Writes `model.safetensors`."""
    contiguous = {name: value.detach().contiguous() for name, value in parameters.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def load_parameters(folder: Path) -> dict[str, Tensor]:
    """The weights of a policy folder by name."""
    try:
        parameters: dict[str, Tensor] = load_file(folder / WEIGHTS)
    except FileNotFoundError as error:
        raise PolicyFolderError(
            f"`{folder}` has no `{WEIGHTS}`\nhint: give a folder in Hugging Face form"
        ) from error
    return parameters


def load_decoder(folder: Path) -> Decoder:
    """The network of a policy folder, float32."""
    return build_decoder(DecoderConfig.from_folder(folder), load_parameters(folder))


def build_decoder(config: DecoderConfig, parameters: Mapping[str, Tensor]) -> Decoder:
    """A network that uses the given tensors as its parameters, without copying them.

    Raises:
        PolicyFolderError: Names or shapes do not fit the configuration.
    """
    with torch.device("meta"):
        decoder = Decoder(config)
    named = {name: value.float() for name, value in parameters.items()}
    if config.tied:
        named.pop("lm_head.weight", None)
    try:
        decoder.load_state_dict(named, assign=True)
    except RuntimeError as error:
        raise PolicyFolderError(f"weights do not fit `config.json`: {error}") from error
    return decoder


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a policy folder; never downloads."""
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
        folder, local_files_only=True
    )
    return tokenizer
