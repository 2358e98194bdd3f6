"""Training sequences for the trainer, joined by id from trajectories and advantages."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from models.training_data import TrainingSequence
from tasks.shards import rows_of


def training_sequences(trajectories: pa.Table, advantages: pa.Table) -> list[TrainingSequence]:
    """Joins the two shards by (episode, sequence); order is that of the advantages.

    Args:
        trajectories: A trajectory shard.
        advantages: An advantage shard of it, checked by the gates.
    """
    place = {key: index for index, key in enumerate(_keys(trajectories))}
    rows = [place[key] for key in _keys(advantages)]
    tokens, sampled = (rows_of(trajectories, name) for name in ("tokens", "sampled"))
    logprobs = full_log_probs(trajectories)
    estimates = [rows_of(advantages, name) for name in ("advantages", "returns", "values")]
    weights = advantages["weight"].to_pylist()
    return [
        TrainingSequence(
            tokens=tokens[row],
            sampled=sampled[row].astype(np.bool_),
            logprobs=logprobs[row],
            advantages=estimates[0][index],
            returns=estimates[1][index],
            values=estimates[2][index],
            weight=weights[index],
        )
        for index, row in enumerate(rows)
    ]


def full_log_probs(trajectories: pa.Table) -> list[NDArray[np.float32]]:
    """Log-probs under the whole softmax at the sampling temperature; NaN where not sampled.

    Top-p and top-k renormalise what they keep in the sampler only; the trainer does not. The stored
    keep mass takes that back (L3).

    Args:
        trajectories: A trajectory shard.

    Returns:
        One array per row, [T].
    """
    columns = (rows_of(trajectories, name) for name in ("logprobs", "keep_mass"))
    return [
        (logprobs + np.log(keep_mass)).astype(np.float32)
        for logprobs, keep_mass in zip(*columns, strict=True)
    ]


def _keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["episode"].to_pylist(), table["sequence"].to_pylist(), strict=True))
