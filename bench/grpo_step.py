"""One whole GRPO step on one core: ours beside TRL's GRPOTrainer on the same policy and sizes.

64 replies of 48 tokens (8 prompts of 40 tokens, 8 replies each) are sampled, scored, compared in
their groups and learned from in one optimiser step. TRL is no dependency of the project: without it
the benchmark says so. `pip install trl` into the environment adds it.
"""

import importlib.util
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from bench.sampler import NO_TOKEN
from models.engines.base import Request
from models.engines.torch_engine import TorchEngine
from models.estimators import GroupEstimator, group_advantages
from models.folder import weights_digest
from models.lane_work import run_here
from models.nano import build_nano
from models.policy import save_policy, save_weights
from models.settings import LossSettings, NanoSettings, OptimiserSettings, Sampling
from models.trainer import load_state, update_policy
from models.training_data import TrainingSequence

PROMPTS, MEMBERS, PROMPT_TOKENS, REPLY_TOKENS, NUM_STEPS = 8, 8, 40, 48, 6


def our_steps(folder: Path) -> list[float]:
    """Processor seconds of each of our steps."""
    settings = OptimiserSettings(mini_batches=1, ramp_updates=0, learning_rate=1e-6)
    state = load_state(folder, settings=settings, with_critic=False)
    engine, rng = TorchEngine(), np.random.default_rng(0)
    spent = []
    for step in range(NUM_STEPS):
        prompts = rng.integers(10, 250, (PROMPTS, PROMPT_TOKENS)).astype(np.int32)
        start = time.thread_time()
        engine.load(folder, digest=weights_digest(folder))
        requests = [
            Request(f"{step}/{row}", prompts[row // MEMBERS], str(row // MEMBERS), REPLY_TOKENS)
            for row in range(PROMPTS * MEMBERS)
        ]
        replies = engine.generate(requests, sampling=Sampling(), seed=step)
        returns = np.array([float(len(set(reply.tokens.tolist()))) for reply in replies])
        groups = np.array([request.group for request in requests])
        advantages = group_advantages(returns, groups, estimator=GroupEstimator.GRPO)
        sequences = [
            _sequence(request, reply.tokens, reply.logprobs, advantage)
            for request, reply, advantage in zip(requests, replies, advantages, strict=True)
        ]
        update_policy(
            state,
            sequences,
            loss=LossSettings(),
            settings=settings,
            temperature=1.0,
            seed=step,
            num_lanes=1,
            run=run_here,
        )
        save_weights(state.policy.parameters, folder)
        spent.append(time.thread_time() - start)
    return spent[1:]


def _sequence(
    request: Request, tokens: np.ndarray, logprobs: np.ndarray, advantage: float
) -> TrainingSequence:
    ids = np.concatenate([request.tokens, tokens])
    sampled = np.arange(len(ids)) >= len(request.tokens)
    empty = np.full(len(request.tokens), np.nan, dtype=np.float32)
    zeros = np.zeros(len(ids), dtype=np.float32)
    return TrainingSequence(
        tokens=ids,
        sampled=sampled,
        logprobs=np.concatenate([empty, logprobs]),
        advantages=np.where(sampled, advantage, 0.0).astype(np.float32),
        returns=zeros,
        values=zeros,
    )


def trl_steps(folder: Path, scratch: Path) -> list[float]:
    """Processor seconds of each of TRL's steps."""
    from datasets import Dataset  # noqa: PLC0415 - comes with TRL
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415 - optional

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng = np.random.default_rng(0)
    texts = [
        tokenizer.decode(rng.integers(65, 90, PROMPT_TOKENS)) for _ in range(PROMPTS * NUM_STEPS)
    ]

    def diversity(completions: list[str], **_: Any) -> list[float]:
        return [float(len(set(completion))) for completion in completions]

    class Clock(TrainerCallback):
        """Notes the processor time at the end of each step."""

        ends: list[float] = []  # noqa: RUF012 - one run only

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.thread_time())

    clock = Clock()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=tokenizer,
        reward_funcs=diversity,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        args=GRPOConfig(
            output_dir=str(scratch),
            per_device_train_batch_size=PROMPTS * MEMBERS,
            num_generations=MEMBERS,
            max_completion_length=REPLY_TOKENS,
            generation_kwargs={"min_new_tokens": REPLY_TOKENS},  # no reply stops before, as ours
            max_steps=NUM_STEPS,
            learning_rate=1e-6,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        ),
        callbacks=[clock],
    )
    trainer.train()
    return np.diff(clock.ends).tolist()


def main() -> None:
    """Measures and prints the table."""
    torch.set_num_threads(1)
    table = Table(
        "step", "seconds", "ratio", title="One GRPO step, 64 replies of 48 tokens, one core"
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "policy"
        policy = build_nano(["row: wall, box, goal"] * 50, settings=NanoSettings(), seed=0)
        policy.generation = {"eos_token_id": NO_TOKEN, "pad_token_id": 0, "do_sample": True}
        save_policy(policy, folder)
        if importlib.util.find_spec("trl") is None:
            table.add_row("ours", f"{statistics.median(our_steps(folder)):.2f}", "")
            table.add_row("TRL", "not installed", "`pip install trl`")
        else:
            theirs = statistics.median(trl_steps(folder, Path(place) / "trl"))
            mine = statistics.median(our_steps(folder))
            table.add_row("ours", f"{mine:.2f}", f"{theirs / mine:.2f}x")
            table.add_row("TRL GRPOTrainer", f"{theirs:.2f}", "")
    table.caption = "target >= 1.5x, stretch 2x"
    Console().print(table)


if __name__ == "__main__":
    main()
