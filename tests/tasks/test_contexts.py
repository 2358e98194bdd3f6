"""Contexts and rewards in real episodes of a small untrained policy."""

from pathlib import Path

import numpy as np
import pytest

from envs.base import Split
from models.chat import ChatRenderer
from models.folder import weights_digest
from models.nano import build_nano
from models.policy import load_tokenizer, save_policy
from models.settings import NanoSettings, Sampling
from tasks.collect import Collection, collect
from tasks.environment import EnvironmentSettings
from tasks.episodes import Episodes
from tasks.estimates import AdvantageSettings, Estimator, estimate_advantages
from tasks.gates import check_trajectories
from tasks.lanes import Lanes
from tasks.rollout import RolloutSettings, training_episodes
from tasks.shards import Kind, Shard, read_shard, rows_of, write_shard
from tasks.summary import episode_rows, summarise
from tasks.trajectories import Status, Trajectory, trajectory_table

SAMPLING = Sampling()


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "nano"
    texts = [f"at {number},3 go Left || Down" for number in range(20)]
    save_policy(build_nano(texts, settings=NanoSettings(width=32, heads=2), seed=0), folder)
    return folder


def play(policy: Path, *, workers: int = 1, **changes: object) -> list[Trajectory]:
    environment = EnvironmentSettings(tag="ShortSokoban", prompt="compact", **changes)
    collection = Collection(
        policy=policy,
        weight_digest=weights_digest(policy),
        policy_version=0,
        environment=environment,
        split=Split.TRAIN,
        sampling=SAMPLING,
        max_reply_tokens=8,
        seed=1,
        cut_penalty=0.0,
        episodes=training_episodes(
            RolloutSettings(groups=3, group_size=2), tag="ShortSokoban", iteration=0, seed=0
        ),
    )
    with Lanes(workers=workers) as lanes:
        return collect(collection, lanes=lanes, num_lanes=2)


def shard_of(rows: list[Trajectory], folder: Path) -> Shard:
    path = folder / "trajectories.parquet"
    facts = {"sampling": SAMPLING.model_dump(mode="json"), "asked": len(rows)}
    write_shard(path, trajectory_table(rows), kind=Kind.TRAJECTORIES, metadata=facts)
    return read_shard(path, kind=Kind.TRAJECTORIES)


@pytest.mark.parametrize("context", ["limited", "single"])
def test_every_turn_is_a_sequence_and_an_episode_weighs_one(
    policy: Path, tmp_path: Path, context: str
) -> None:
    rows = play(policy, context=context)
    for row in rows:
        assert [item.first_turn for item in row.sequences] == list(range(len(row.turns)))
        assert {item.num_turns for item in row.sequences} == {1}
    shard = shard_of(rows, tmp_path)
    check_trajectories(
        shard, weight_digest=weights_digest(policy), sampling=SAMPLING.model_dump(mode="json")
    )
    weights = shard.table.group_by("episode").aggregate([("weight", "sum")])["weight_sum"]
    assert weights.to_pylist() == pytest.approx([1.0] * len(rows))


def test_a_single_context_is_the_turns_own_message(policy: Path) -> None:
    renderer = ChatRenderer(load_tokenizer(policy))
    for row in play(policy, context="single"):
        for turn, sequence in zip(row.turns, row.sequences, strict=True):
            prompt = sequence.tokens[~sequence.sampled].tolist()
            assert prompt == renderer.first_prompt(turn.prompt)


def test_I1_a_limited_context_repeats_the_ids_of_its_last_turns(policy: Path) -> None:
    renderer = ChatRenderer(load_tokenizer(policy))
    for row in play(policy, context="limited", context_turns=2):
        for before, sequence, turns in zip(
            row.sequences,
            row.sequences[1:],
            zip(row.turns, row.turns[1:], strict=False),
            strict=False,
        ):
            said = before.tokens[before.sampled].tolist()
            stopped = turns[0].stop_reason == "stop_token"
            expected = [
                *renderer.first_prompt(turns[0].prompt),
                *said,
                *renderer.next_prompt_suffix(turns[1].prompt, reply_stopped=stopped),
            ]
            assert sequence.tokens[~sequence.sampled].tolist() == expected


def test_turns_from_the_same_message_draw_their_own_noise(policy: Path) -> None:
    repeated = 0
    for row in play(policy, context="single"):
        for one, other in zip(row.sequences, row.sequences[1:], strict=False):
            same_prompt = np.array_equal(one.tokens[~one.sampled], other.tokens[~other.sampled])
            repeated += same_prompt and np.array_equal(one.tokens, other.tokens)
    assert repeated == 0


@pytest.mark.parametrize("context", ["full", "limited", "single"])
def test_G3_I7_one_and_two_workers_play_the_same(policy: Path, context: str) -> None:
    one = trajectory_table(play(policy, context=context))
    assert one == trajectory_table(play(policy, context=context, workers=2))


def test_numbers_of_episodes_do_not_depend_on_the_number_of_sequences(policy: Path) -> None:
    table = trajectory_table(play(policy, context="single"))
    numbers = summarise(table, prefix="rollout")
    assert numbers["rollout/episodes"] == 6 == episode_rows(table).num_rows
    assert numbers["rollout/turns"] == table.num_rows / 6


def test_I4_an_episode_counts_once_in_its_group_whatever_its_sequences(policy: Path) -> None:
    table = trajectory_table(play(policy, context="single"))
    found = estimate_advantages(table, settings=AdvantageSettings()).advantages
    episodes = Episodes(table)
    for group in set(episodes.groups):
        members = [
            found[episodes.rows[i][0]].sum() / rows_of(table, "sampled")[episodes.rows[i][0]].sum()
            for i in range(len(episodes.rows))
            if episodes.groups[i] == group
        ]
        assert sum(members) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("estimator", [Estimator.GAE, Estimator.TURN_GAE, Estimator.BILEVEL_GAE])
def test_a_critics_advantages_run_over_the_turns_of_an_episode(policy, estimator) -> None:
    table = trajectory_table(play(policy, context="single", invalid_penalty=0.5))
    values = [np.zeros(len(row) + 1, dtype=np.float32) for row in rows_of(table, "tokens")]
    settings = AdvantageSettings(estimator=estimator, whiten=False)
    found = estimate_advantages(table, settings=settings, values=values).advantages
    episodes = Episodes(table)
    for rows, rewards in zip(episodes.rows, episodes.turn_rewards(), strict=True):
        to_go = np.cumsum(rewards[::-1])[::-1]
        for row, expected in zip(rows, to_go, strict=True):
            sampled = rows_of(table, "sampled")[row]
            assert found[row][sampled] == pytest.approx(expected, abs=1e-5)
            assert not found[row][~sampled].any()


def pay_turns(played) -> list[float]:
    return [float(len(reply)) for reply in played.replies]


def pay_end(played) -> float:
    return 1.0 if played.success else -float(len(played.actions))


def pay_nothing_finite(played) -> float:
    del played
    return float("nan")


def pay_too_little(played) -> list[float]:
    del played
    return []


def test_a_reward_function_pays_the_turns(policy: Path) -> None:
    for row in play(policy, reward=f"{__name__}:pay_turns"):
        assert [turn.reward for turn in row.turns] == [len(turn.reply) for turn in row.turns]


def test_a_single_reward_is_paid_at_the_last_turn(policy: Path) -> None:
    for row in play(policy, reward=f"{__name__}:pay_end"):
        assert [turn.reward for turn in row.turns][:-1] == [0.0] * (len(row.turns) - 1)
        assert row.turns[-1].reward == (1.0 if row.success else -len(row.turns))


def test_trajectory_rewards_are_the_sum_of_the_turns_at_the_end(policy: Path) -> None:
    turns, whole = play(policy), play(policy, reward_timing="trajectory")
    for one, other in zip(turns, whole, strict=True):
        assert other.turns[-1].reward == pytest.approx(sum(turn.reward for turn in one.turns))
        assert not any(turn.reward for turn in other.turns[:-1])


@pytest.mark.parametrize("name", ["pay_nothing_finite", "pay_too_little"])
def test_A5_a_reward_function_that_fails_errs_the_episode(policy: Path, name: str) -> None:
    for row in play(policy, reward=f"{__name__}:{name}"):
        assert row.status is Status.ERRORED
        assert "reward" in row.error


def test_I9_a_reward_path_that_names_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no_such_module"):
        EnvironmentSettings(tag="Bandit", reward="no_such_module:pay")
