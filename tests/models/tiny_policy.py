"""A tiny decoder and random training sequences for the tests of the learning mathematics."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from models.decoder import Decoder, DecoderConfig
from models.gradients import GradientJob
from models.rescoring import RescoringJob, rescore
from models.settings import LossSettings
from models.trainer import TrainerState, load_state, normaliser_of
from models.training_data import Parameters, TrainingSequence

VOCABULARY = 17
CONFIGURATION = {
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 256,
}
CONFIG = DecoderConfig.from_dict(CONFIGURATION)


def tiny_parameters(*, seed: int = 0, scale: float = 0.3) -> Parameters:
    """Random weights by name, large enough for a distribution that is far from uniform."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            np.ones(tuple(value.shape))
            if value.ndim == 1
            else rng.normal(0, scale, tuple(value.shape))
        ).astype(np.float32)
        for name, value in Decoder(CONFIG).named_parameters()
    }


def tiny_critic(*, seed: int = 5) -> Parameters:
    """Random weights of a critic."""
    head = np.random.default_rng(seed + 1).normal(0, 0.5, (1, 16)).astype(np.float32)
    return {**tiny_parameters(seed=seed), "value_head.weight": head}


def tiny_sequence(
    rng: np.random.Generator, *, turns: int = 2, prompt: int = 4, reply: int = 5, **changes: object
) -> TrainingSequence:
    """A random sequence: per turn a prompt, then sampled tokens."""
    mask = np.array(([False] * prompt + [True] * reply) * turns)
    size = len(mask)
    content: dict = {
        "tokens": rng.integers(0, VOCABULARY, size).astype(np.int32),
        "sampled": mask,
        "logprobs": np.where(mask, -1.0, np.nan).astype(np.float32),
        "advantages": np.where(mask, rng.normal(), 0).astype(np.float32),
        "returns": np.where(mask, rng.normal(size=size), 0).astype(np.float32),
        "values": np.where(mask, rng.normal(size=size), 0).astype(np.float32),
    }
    return TrainingSequence(**{**content, **changes})


def on_policy(
    sequences: list[TrainingSequence], parameters: Parameters, *, temperature: float = 1.0
) -> list[TrainingSequence]:
    """The sequences with the log-probs that these weights give them."""
    rows = rescore(RescoringJob(CONFIG, parameters, sequences, temperature, 4096))
    return [replace_logprobs(item, row) for item, row in zip(sequences, rows, strict=True)]


def replace_logprobs(item: TrainingSequence, row: np.ndarray) -> TrainingSequence:
    return TrainingSequence(**{**vars(item), "logprobs": row})


def tiny_batch(*, count: int = 6, seed: int = 1) -> list[TrainingSequence]:
    """Sequences of different lengths, sampled by `tiny_parameters()`."""
    rng = np.random.default_rng(seed)
    rows = [
        tiny_sequence(rng, turns=1 + index % 3, prompt=2 + index, reply=1 + index % 4)
        for index in range(count)
    ]
    return on_policy(rows, tiny_parameters())


def gradient_job(
    sequences: list[TrainingSequence], *, loss: LossSettings | None = None, **changes: object
) -> GradientJob:
    content: dict = {
        "config": CONFIG,
        "parameters": tiny_parameters(),
        "critic": None,
        "sequences": sequences,
        "loss": loss or LossSettings(),
        "temperature": 1.0,
        "normaliser": normaliser_of(sequences),
        "micro_tokens": 4096,
    }
    return GradientJob(**{**content, **changes})


def tiny_folder(folder: Path, *, seed: int = 0) -> Path:
    """A policy folder without tokenizer."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGURATION))
    tensors = {name: torch.from_numpy(value) for name, value in tiny_parameters(seed=seed).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tiny_state(folder: Path, **options: object) -> TrainerState:
    return load_state(tiny_folder(folder), **options)  # type: ignore[arg-type]
