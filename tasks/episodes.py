"""The episodes behind the rows of a trajectory shard, whatever the context was."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.shards import rows_of
from tasks.summary import learning_returns

Rows = list[NDArray[np.float64]]


class Episodes:
    """The episodes behind the rows of a trajectory shard, in order of first appearance.

    Args:
        table: Rows that did not error; the rows of an episode in any order.

    Attributes:
        of_row: Episode of each row, [rows].
        rows: Rows of each episode, in the order of its turns.
        groups: Group of each episode, [episodes].
        returns: Return and penalty of each episode, [episodes].
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        names = pa.concat_arrays([*table["episode"].chunks, pa.array([], pa.string())])
        self.of_row: NDArray[np.int64] = (
            names.dictionary_encode().indices.to_numpy().astype(np.int64)
        )
        order = np.lexsort((table["sequence"].to_numpy(), self.of_row))
        _, starts = np.unique(self.of_row[order], return_index=True)
        self.rows: list[NDArray[np.int64]] = np.split(order, starts[1:]) if len(order) else []
        first = order[starts]
        self.groups = np.array(table["group"].to_pylist(), dtype=np.str_)[first]
        self.returns = learning_returns(table)[first]

    def turns(self) -> list[NDArray[np.int16]]:
        """Per episode: turn of each token of its rows one after another, -1 if not sampled."""
        columns = rows_of(self.table, "turn")
        first = self.table["first_turn"].to_numpy()
        return [
            np.concatenate(
                [np.where(columns[row] >= 0, columns[row] + first[row], -1) for row in rows]
            ).astype(np.int16)
            for rows in self.rows
        ]

    def turn_rewards(self) -> Rows:
        """Per episode: reward and penalty of each turn."""
        paid = [
            (rewards + penalties).astype(np.float64)
            for rewards, penalties in zip(
                rows_of(self.table, "rewards"), rows_of(self.table, "penalties"), strict=True
            )
        ]
        return [np.concatenate([paid[row] for row in rows]) for rows in self.rows]

    def joined(self, per_row: Sequence[NDArray[np.float64]]) -> Rows:
        """Per episode: arrays of its rows, one after another."""
        return [np.concatenate([per_row[row] for row in rows]) for rows in self.rows]

    def split(self, per_episode: Rows) -> Rows:
        """The inverse of `joined`."""
        lengths = [len(row) for row in rows_of(self.table, "tokens")]
        found: Rows = [np.zeros(0)] * len(lengths)
        for rows, values in zip(self.rows, per_episode, strict=True):
            parts = pieces(values, [lengths[row] for row in rows])
            for row, part in zip(rows, parts, strict=True):
                found[row] = part
        return found


def pieces(flat: NDArray[np.float64], lengths: Sequence[int]) -> Rows:
    """Cuts an array into consecutive pieces of these lengths; the inverse of concatenation."""
    return np.split(flat, np.cumsum(lengths)[:-1])
