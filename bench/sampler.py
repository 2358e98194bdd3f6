"""Speed of sampling on one core: our engine beside `transformers`' `generate`, on one job.

Eight groups of eight episodes play five turns; a prompt grows by 40 tokens a turn, a reply has 24
tokens on average. `generate` computes every prompt afresh in every turn, and all rows go on until
the longest reply has ended; it returns no log-probs here, our engine does. Only tokens of the
replies count. The two take turns, round by round, so that a busy machine slows both.

Run from the root of the repository: `python bench/sampler.py`.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from models.engines.base import Request
from models.engines.torch_engine import TorchEngine
from models.folder import weights_digest
from models.nano import build_nano
from models.policy import save_policy
from models.settings import NanoSettings, Sampling

GROUPS, MEMBERS, TURNS, TEXT = 8, 8, 5, 40
ROWS = GROUPS * MEMBERS
SPANS = {"every reply 24 tokens": (24, 24), "replies of 16-32 tokens": (16, 32)}
NUM_ROUNDS = 5
NO_TOKEN = 1_000_000
"""A stop token that is never sampled: replies have exactly the length that the job says."""

Texts = list[NDArray[np.int32]]


@dataclass(frozen=True)
class Job:
    """What both sides sample.

    Attributes:
        texts: New ids of each turn, [turn], each int32, [row, token].
        lengths: Length of each reply, [turn, row].
    """

    texts: Texts
    lengths: NDArray[np.int64]


def make_policy(folder: Path) -> Path:
    """Writes a nano policy with random weights that never stops."""
    texts = [f"row {number}: wall, box, goal" for number in range(1_000)]
    policy = build_nano(texts, settings=NanoSettings(), seed=0)
    policy.generation = {"eos_token_id": NO_TOKEN, "pad_token_id": 0, "do_sample": True}
    save_policy(policy, folder)
    return folder


def make_job(*, shortest: int, longest: int) -> Job:
    """Draws new texts and reply lengths; the members of a group start from the same text."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(10, 250, size=(ROWS, TEXT)).astype(np.int32) for _ in range(TURNS)]
    texts[0] = np.repeat(texts[0][:GROUPS], MEMBERS, axis=0)
    return Job(texts, rng.integers(shortest, longest + 1, size=(TURNS, ROWS)))


def sample_with_engine(engine: TorchEngine, job: Job) -> None:
    """Plays the job's turns with our engine."""
    past = [np.empty(0, dtype=np.int32)] * ROWS
    for texts, lengths in zip(job.texts, job.lengths, strict=True):
        past = [np.concatenate(pair) for pair in zip(past, texts, strict=True)]
        requests = [
            Request(f"row {row}", past[row], f"group {row // MEMBERS}", int(lengths[row]))
            for row in range(ROWS)
        ]
        replies = engine.generate(requests, sampling=Sampling(), seed=0)
        past = [np.concatenate([old, new.tokens]) for old, new in zip(past, replies, strict=True)]
    engine.release([f"row {row}" for row in range(ROWS)])


def sample_with_generate(model: torch.nn.Module, job: Job) -> None:
    """Plays the job's turns with `generate`, prompts padded on the left."""
    past: list[NDArray[np.int32]] = [np.empty(0, dtype=np.int32)] * ROWS
    for texts, lengths in zip(job.texts, job.lengths, strict=True):
        past = [np.concatenate(pair) for pair in zip(past, texts, strict=True)]
        longest = max(map(len, past))
        ids = torch.zeros((ROWS, longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(past):
            ids[row, longest - len(tokens) :] = torch.from_numpy(tokens)
            mask[row, longest - len(tokens) :] = 1
        settings = GenerationConfig(
            max_new_tokens=int(lengths.max()), do_sample=True, top_k=0, top_p=1.0, pad_token_id=0
        )
        with torch.inference_mode():
            sampled = model.generate(ids, attention_mask=mask, generation_config=settings)
        replies = sampled[:, longest:].numpy().astype(np.int32)
        past = [
            np.concatenate([old, reply[:count]])
            for old, reply, count in zip(past, replies, lengths, strict=True)
        ]


def seconds(work: Callable[[], None]) -> float:
    """Processor time of one call on this thread alone, in seconds."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def main() -> None:
    """Measures and prints the table."""
    torch.set_num_threads(1)
    disable_progress_bar()
    table = Table("job", "ours", "generate", "ratio", title="Sampled tokens a second, one core")
    with tempfile.TemporaryDirectory() as place:
        folder = make_policy(Path(place) / "policy")
        engine = TorchEngine()
        engine.load(folder, digest=weights_digest(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        for name, (shortest, longest) in SPANS.items():
            job = make_job(shortest=shortest, longest=longest)
            sides = (
                partial(sample_with_engine, engine, job),
                partial(sample_with_generate, model, job),
            )
            rounds = [[seconds(side) for side in sides] for _ in range(NUM_ROUNDS + 1)][1:]
            ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
            count = int(job.lengths.sum())
            table.add_row(
                name, f"{count / ours:,.0f}", f"{count / theirs:,.0f}", f"{theirs / ours:.2f}x"
            )
    table.caption = "target >= 2x, stretch 3x"
    Console().print(table)


if __name__ == "__main__":
    main()
