"""Training sequences for the trainer, joined by id from trajectories and advantages."""

import numpy as np
import pyarrow as pa

from models.training_data import TrainingSequence
from tasks.shards import full_log_probs, rows_of


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


def _keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["episode"].to_pylist(), table["sequence"].to_pylist(), strict=True))
