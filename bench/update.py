"""Speed of learning on one core: our gradient beside a bare forward and backward on a padded batch.

Both sides compute the gradient of the same sequences for the same weights. The other side is
`transformers` on the padded batch, with the log-probs of all positions and their sum as the loss:
the least that any trainer of padded batches does.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from models.gradients import GradientJob, compute_gradient
from models.nano import build_nano
from models.policy import save_policy
from models.settings import LossSettings, NanoSettings
from models.trainer import normaliser_of
from models.training_data import TrainingSequence

NUM_SEQUENCES, NUM_ROUNDS = 64, 5
SHAPES = {"equal lengths (300)": (300, 300), "lengths 100-300": (100, 300)}


def make_sequences(*, shortest: int, longest: int) -> list[TrainingSequence]:
    """Random sequences, of whose tokens every third was sampled."""
    rng = np.random.default_rng(0)
    sequences = []
    for length in rng.integers(shortest, longest + 1, NUM_SEQUENCES):
        sampled = np.arange(length) % 3 == 2
        zeros = np.zeros(length, dtype=np.float32)
        sequences.append(
            TrainingSequence(
                tokens=rng.integers(10, 250, length).astype(np.int32),
                sampled=sampled,
                logprobs=np.where(sampled, -5.0, np.nan).astype(np.float32),
                advantages=np.where(sampled, rng.normal(size=length), 0.0).astype(np.float32),
                returns=zeros,
                values=zeros,
            )
        )
    return sequences


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call on this thread, in seconds."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def main() -> None:
    """Measures and prints the table."""
    torch.set_num_threads(1)
    title = "Tokens a second in an update, one core"
    table = Table("batch", "ours", "bare padded", "ratio", title=title)
    policy = build_nano(["row: wall, box, goal"] * 50, settings=NanoSettings(), seed=0)
    with tempfile.TemporaryDirectory() as place:
        save_policy(policy, Path(place) / "policy")
        model = AutoModelForCausalLM.from_pretrained(Path(place) / "policy").train()
    weights = {name: value.numpy() for name, value in policy.decoder.state_dict().items()}
    for name, (shortest, longest) in SHAPES.items():
        sequences = make_sequences(shortest=shortest, longest=longest)
        job = GradientJob(
            config=policy.decoder.config,
            parameters=weights,
            critic=None,
            sequences=sequences,
            loss=LossSettings(),
            temperature=1.0,
            normaliser=normaliser_of(sequences),
            micro_tokens=8192,
        )
        width = max(len(item.tokens) for item in sequences)
        padded = torch.zeros((NUM_SEQUENCES, width), dtype=torch.int64)
        for row, item in enumerate(sequences):
            padded[row, : len(item.tokens)] = torch.from_numpy(item.tokens)

        def bare(ids: torch.Tensor = padded) -> None:
            model.zero_grad()
            logits = model(ids).logits[:, :-1]
            torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).sum().backward()

        def ours(work: GradientJob = job) -> None:
            compute_gradient(work)

        rounds = [[seconds(ours), seconds(bare)] for _ in range(NUM_ROUNDS + 1)][1:]
        mine, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
        count = sum(len(item.tokens) for item in sequences)
        table.add_row(
            name, f"{count / mine:,.0f}", f"{count / theirs:,.0f}", f"{theirs / mine:.2f}x"
        )
    table.caption = "target >= 0.9x"
    Console().print(table)


if __name__ == "__main__":
    main()
