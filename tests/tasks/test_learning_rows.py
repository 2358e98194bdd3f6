import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from tasks.learning_rows import training_sequences
from tasks.shards import full_log_probs, ragged


def _advantages(shard, order: list[int]) -> pa.Table:
    table = shard.table.take(order)
    rows = [np.full(10, float(index), dtype=np.float32) for index in order]
    column = ragged(rows, pa.float32())
    names = ("episode", "sequence", "group", "weight")
    values = dict.fromkeys(("advantages", "returns", "values"), column)
    return pa.table({**{name: table[name] for name in names}, **values})


def test_A2_sequences_are_joined_by_id_whatever_the_order(trajectory, as_shard) -> None:
    shard = as_shard([trajectory(member=member) for member in range(4)])
    sequences = training_sequences(shard.table, _advantages(shard, [2, 0, 3]))
    for member, sequence in zip([2, 0, 3], sequences, strict=True):
        assert np.array_equal(sequence.tokens, trajectory(member=member).sequences[0].tokens)
        assert set(sequence.advantages) == {float(member)}


def test_L3_the_keep_mass_gives_the_log_prob_of_the_whole_softmax_back(
    trajectory, as_shard
) -> None:
    row = trajectory()
    whole = row.sequences[0]
    kept = np.where(whole.sampled, 0.8, np.nan).astype(np.float32)
    sequences = [dataclasses.replace(whole, keep_mass=kept)]
    shard = as_shard([dataclasses.replace(row, sequences=sequences)])
    (found,) = full_log_probs(shard.table)
    expected = whole.logprobs[whole.sampled] + np.log(0.8)
    assert found[whole.sampled] == pytest.approx(expected, abs=1e-6)
    assert np.isnan(found[~whole.sampled]).all()
