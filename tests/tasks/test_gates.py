import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from tasks.errors import GateError
from tasks.gates import check_advantages, check_trajectories
from tasks.shards import SCHEMAS, Kind, Shard, ragged

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
WEIGHTS = "ab" * 32


@pytest.fixture
def shard(trajectory, as_shard) -> Shard:
    return as_shard([trajectory(group=group, member=m) for group in ("g0", "g1") for m in range(2)])


def _check(shard: Shard, *, digest: str = WEIGHTS, sampling: dict | None = None) -> None:
    check_trajectories(shard, weight_digest=digest, sampling=sampling or SAMPLING)


def test_a_right_shard_passes(shard: Shard) -> None:
    _check(shard)


def test_L2_another_temperature_is_refused(shard: Shard) -> None:
    with pytest.raises(GateError, match="I3.*distribution"):
        _check(shard, sampling={**SAMPLING, "temperature": 0.6})


def test_L9_rollouts_of_stale_weights_are_refused(shard: Shard) -> None:
    with pytest.raises(GateError, match="I3: sampled by weights"):
        _check(shard, digest="cd" * 32)


def _with_lists(shard: Shard, name: str, change) -> Shard:
    rows = shard.table.column(name).to_pylist()
    change(rows)
    index = shard.table.schema.get_field_index(name)
    column = pa.array(rows, type=SCHEMAS[Kind.TRAJECTORIES].field(name).type)
    return dataclasses.replace(shard, table=shard.table.set_column(index, name, column))


def test_T10_an_inverted_mask_is_refused(shard: Shard) -> None:
    def invert(rows) -> None:
        rows[1] = [not value for value in rows[1]]

    with pytest.raises(GateError, match="I2"):
        _check(_with_lists(shard, "sampled", invert))


def test_T12_a_token_in_the_loss_without_a_logprob_is_refused(shard: Shard) -> None:
    def forget(rows) -> None:
        rows[2][4] = None

    with pytest.raises(GateError, match="I2: token 4 of episode `g1/0`"):
        _check(_with_lists(shard, "logprobs", forget))


def test_a_shifted_mask_is_refused(shard: Shard) -> None:
    def shift(rows) -> None:
        rows[0] = [rows[0][-1], *rows[0][:-1]]

    with pytest.raises(GateError, match="I2"):
        _check(_with_lists(shard, "sampled", shift))


def test_lists_of_unequal_length_are_refused(shard: Shard) -> None:
    with pytest.raises(GateError, match="unequal lengths"):
        _check(_with_lists(shard, "turn", lambda rows: rows[0].pop()))


def test_a_positive_logprob_is_refused(shard: Shard) -> None:
    def raise_it(rows) -> None:
        rows[0][3] = 0.5

    with pytest.raises(GateError, match="above 0"):
        _check(_with_lists(shard, "logprobs", raise_it))


def test_a_turn_without_sampled_tokens_is_refused(shard: Shard) -> None:
    def merge(rows) -> None:
        rows[0] = [0 if value == 1 else value for value in rows[0]]

    with pytest.raises(GateError, match="has 2 turns but sampled tokens in turns"):
        _check(_with_lists(shard, "turn", merge))


def test_P2_a_repeated_episode_is_refused(shard: Shard) -> None:
    repeated = pa.concat_tables([shard.table, shard.table.slice(0, 1)])
    with pytest.raises(GateError, match="more than once"):
        _check(dataclasses.replace(shard, table=repeated))


def test_P2_a_lost_episode_is_refused(shard: Shard) -> None:
    with pytest.raises(GateError, match="4 episodes were asked, 3 came back"):
        _check(dataclasses.replace(shard, table=shard.table.slice(1)))


def test_A3_a_group_of_different_instances_is_refused(shard: Shard, replace_column) -> None:
    seeds = shard.table["env_seed"].to_pylist()
    seeds[1] += 1
    with pytest.raises(GateError, match="I4: group `g0` mixes"):
        _check(replace_column(shard, "env_seed", seeds))


def test_an_episode_that_does_not_weigh_one_is_refused(shard: Shard, replace_column) -> None:
    with pytest.raises(GateError, match="weighs 0.5"):
        _check(replace_column(shard, "weight", [0.5, 1, 1, 1]))


def test_an_unknown_status_is_refused(shard: Shard, replace_column) -> None:
    with pytest.raises(GateError, match="unknown status"):
        _check(replace_column(shard, "status", ["done", *["finished"] * 3]))


def _advantages(shard: Shard, rows: list[np.ndarray]) -> Shard:
    column = ragged(rows, pa.float32())
    zeros = ragged([np.zeros(len(row)) for row in rows], pa.float32())
    names = shard.table.select(["episode", "sequence", "group", "weight"])
    table = pa.table(
        {
            **{name: names[name] for name in names.column_names},
            "advantages": column,
            "returns": zeros,
            "values": zeros,
        }
    )
    return Shard(table, {})


def _sampled(shard: Shard) -> list[np.ndarray]:
    return [np.array(row, dtype=np.float32) for row in shard.table["sampled"].to_pylist()]


def test_advantages_on_the_sampled_tokens_pass(shard: Shard) -> None:
    check_advantages(shard, _advantages(shard, _sampled(shard)))


def test_A9_an_advantage_on_an_observation_token_is_refused(shard: Shard) -> None:
    rows = _sampled(shard)
    rows[1][0] = 0.1
    with pytest.raises(GateError, match="not sampled"):
        check_advantages(shard, _advantages(shard, rows))


def test_A5_an_advantage_that_is_not_finite_is_refused(shard: Shard) -> None:
    rows = _sampled(shard)
    rows[1][3] = np.nan
    with pytest.raises(GateError, match="not finite"):
        check_advantages(shard, _advantages(shard, rows))


def test_advantages_of_another_length_are_refused(shard: Shard) -> None:
    rows = _sampled(shard)
    rows[1] = rows[1][:-1]
    with pytest.raises(GateError, match="9 advantages for the 10 tokens"):
        check_advantages(shard, _advantages(shard, rows))


def test_advantages_of_an_unknown_episode_are_refused(shard: Shard, replace_column) -> None:
    wrong = _advantages(shard, _sampled(shard))
    names = ["other", *wrong.table["episode"].to_pylist()[1:]]
    index = wrong.table.schema.get_field_index("episode")
    table = wrong.table.set_column(index, "episode", pa.array(names))
    with pytest.raises(GateError, match="unknown or repeated"):
        check_advantages(shard, Shard(table, {}))


@pytest.mark.parametrize("mass", [0.0, -0.5, 1.5])
def test_L3_a_keep_mass_that_is_no_probability_is_refused(shard: Shard, mass: float) -> None:
    def replace(rows) -> None:
        rows[0][3] = mass

    with pytest.raises(GateError, match="I3: a keep mass of episode `g0/0`"):
        _check(_with_lists(shard, "keep_mass", replace))
