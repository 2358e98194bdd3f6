"""Episodes played for real by a small untrained policy: what ends up in the shard, and when."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from envs.base import Split
from envs.demonstrations import DemonstrationSettings, demonstrate
from envs.episode import Episode, TurnResult
from envs.errors import EpisodeFailure
from models.chat import ChatRenderer
from models.folder import weights_digest
from models.nano import build_nano
from models.policy import load_tokenizer, save_policy
from models.settings import NanoSettings, Sampling
from tasks.collect import Collection, collect
from tasks.environment import EnvironmentSettings
from tasks.errors import SettingsError
from tasks.lanes import Lanes
from tasks.rollout import RolloutSettings, training_episodes
from tasks.shards import Kind, rows_of, write_shard
from tasks.summary import learning_returns
from tasks.trajectories import Status, Trajectory, trajectory_table

ENVIRONMENT = EnvironmentSettings(tag="ShortSokoban", prompt="compact")
GOLDEN = DemonstrationSettings(random_share=0.0, naive_share=0.0)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    played = [_golden(seed) for seed in range(40)]
    texts = [text for item in played for turn in item.turns for text in (turn.prompt, turn.reply)]
    folder = tmp_path_factory.mktemp("policy") / "nano"
    save_policy(build_nano(texts, settings=NanoSettings(), seed=0), folder)
    return folder


def _golden(seed: int):
    recipe = ENVIRONMENT.recipe()
    return demonstrate(recipe, split=Split.TRAIN, seed=seed, settings=GOLDEN, thinking=True)


def _collect(
    policy: Path,
    *,
    workers: int = 1,
    max_reply_tokens: int = 8,
    cut_penalty: float = 0.0,
    num_lanes: int = 2,
) -> list[Trajectory]:
    settings = RolloutSettings(groups=4, group_size=2)
    collection = Collection(
        policy=policy,
        weight_digest=weights_digest(policy),
        policy_version=0,
        environment=ENVIRONMENT,
        split=Split.TRAIN,
        sampling=Sampling(),
        max_reply_tokens=max_reply_tokens,
        seed=1,
        cut_penalty=cut_penalty,
        episodes=training_episodes(settings, tag="ShortSokoban", iteration=0, seed=0),
    )
    with Lanes(workers=workers) as lanes:
        return collect(collection, lanes=lanes, num_lanes=num_lanes)


def test_R9_the_mask_says_who_sampled_a_token(policy: Path) -> None:
    renderer = ChatRenderer(load_tokenizer(policy))
    for row in _collect(policy):
        start = renderer.first_prompt(row.turns[0].prompt)
        assert row.sequences[0].tokens[: len(start)].tolist() == start
        assert not row.sequences[0].sampled[: len(start)].any()
        assert row.sequences[0].sampled[len(start)]
        for index, turn in enumerate(row.turns):
            ids = row.sequences[0].tokens[row.sequences[0].turn == index]
            assert renderer.decode_reply(ids) == turn.reply


def test_I7_two_workers_play_the_same_bits(policy: Path) -> None:
    for first, second in zip(_collect(policy), _collect(policy, workers=2), strict=True):
        assert first.request == second.request
        assert np.array_equal(first.sequences[0].tokens, second.sequences[0].tokens)
        assert first.sequences[0].logprobs.tobytes() == second.sequences[0].logprobs.tobytes()


def test_C2_a_cut_reply_costs_its_penalty_once_a_turn(policy: Path) -> None:
    kept = _collect(policy, max_reply_tokens=2)
    penalised = _collect(policy, max_reply_tokens=2, cut_penalty=0.25)
    cut = 0
    for before, after in zip(kept, penalised, strict=True):
        for old, new in zip(before.turns, after.turns, strict=True):
            is_cut = new.stop_reason == "length"
            cut += is_cut
            assert new.penalty == pytest.approx(old.penalty - (0.25 if is_cut else 0.0))
    assert cut > 0


def test_G2_a_prompt_without_room_for_a_reply_is_refused_with_the_numbers(policy: Path) -> None:
    with pytest.raises(SettingsError, match="may have 1020, but the policy.s context is 1024"):
        _collect(policy, max_reply_tokens=1020)


def test_G2_an_episode_that_fills_the_context_is_truncated_and_its_last_state_kept(
    policy: Path,
) -> None:
    renderer = ChatRenderer(load_tokenizer(policy))
    rows = _collect(policy, max_reply_tokens=900)
    cut = [row for row in rows if len(row.sequences[0].tokens) + 900 > 1024 and len(row.turns) < 5]
    assert cut
    for row in cut:
        assert (row.status, row.truncated, row.terminated) == (Status.TRUNCATED, True, False)
        assert len(row.sequences[0].tokens) <= 1024
        assert not row.sequences[0].sampled[-1]  # the observation that no reply answered
        assert (
            renderer.decode_reply(row.sequences[0].tokens[row.sequences[0].turn == 0])
            == row.turns[0].reply
        )


def test_R15_running_out_of_turns_truncates_and_is_no_success(policy: Path) -> None:
    rows = _collect(policy, max_reply_tokens=2)  # too short for any action
    assert {row.status for row in rows} == {Status.TRUNCATED}
    assert all(row.truncated and not row.terminated and not row.success for row in rows)
    assert {len(row.turns) for row in rows} == {ENVIRONMENT.recipe().max_turns}


@pytest.mark.parametrize("fault", ["no number", "failure"])
def test_A5_a_failed_episode_is_data_and_the_others_are_played_on(
    policy: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    before = _collect(policy)
    victim = before[3].request
    start, act = Episode.start, Episode.act
    failing: list[Episode] = []

    def spy_start(self: Episode, *, seed: int, noise_seed: int) -> str:
        if (seed, noise_seed) == (victim.env_seed, victim.noise_seed):
            failing.append(self)
        return start(self, seed=seed, noise_seed=noise_seed)

    def faulty(self: Episode, reply: str) -> TurnResult:
        result = act(self, reply)
        if self not in failing or self.turns < 2:
            return result
        if fault == "failure":
            raise EpisodeFailure("server gone")
        return dataclasses.replace(result, reward=float("nan"))

    monkeypatch.setattr(Episode, "start", spy_start)
    monkeypatch.setattr(Episode, "act", faulty)
    after = _collect(policy)
    table = trajectory_table(after)
    assert table["status"].to_pylist().count("errored") == 1
    assert after[3].status is Status.ERRORED
    assert ("server gone" if fault == "failure" else "paid nan in turn 1") in after[3].error
    assert len(after[3].turns) == 2
    assert np.flatnonzero(np.isnan(learning_returns(table))).tolist() == [3]
    assert np.isfinite(np.concatenate(rows_of(table, "rewards"))).all()
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if index != 3:
            assert new.sequences[0].tokens.tobytes() == old.sequences[0].tokens.tobytes()
            assert new.sequences[0].logprobs == pytest.approx(
                old.sequences[0].logprobs, abs=1e-6, nan_ok=True
            )
            assert new.turns == old.turns


def test_P8_two_runs_write_the_same_bytes(policy: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        path = tmp_path / name
        write_shard(
            path, trajectory_table(_collect(policy)), kind=Kind.TRAJECTORIES, metadata={"asked": 8}
        )
        found.append(path.read_bytes())
    assert found[0] == found[1]


def test_I6_the_number_of_lanes_changes_no_token(policy: Path) -> None:
    for first, second in zip(_collect(policy), _collect(policy, num_lanes=3), strict=True):
        assert first.sequences[0].tokens.tobytes() == second.sequences[0].tokens.tobytes()
        assert first.sequences[0].logprobs == pytest.approx(
            second.sequences[0].logprobs, abs=1e-5, nan_ok=True
        )


def test_R13_every_iteration_has_its_own_instances_and_a_resume_the_same() -> None:
    settings = RolloutSettings(groups=8, group_size=2)
    first, second, again = (
        training_episodes(settings, tag="Bandit", iteration=iteration, seed=0)
        for iteration in (0, 1, 0)
    )
    assert first == again
    assert not {item.env_seed for item in first} & {item.env_seed for item in second}
    assert not {item.episode for item in first} & {item.episode for item in second}


@pytest.mark.parametrize("spoil", ["", "not "])
def test_E4_golden_replies_score_everything_and_wrong_ones_nothing(
    policy: Path, spoil: str
) -> None:
    renderer = ChatRenderer(load_tokenizer(policy))
    wins = 0
    for seed in range(25):
        golden = _golden(seed)
        episode = Episode(ENVIRONMENT.recipe(), split=Split.TRAIN, thinking=True)
        episode.start(seed=seed, noise_seed=0)
        for turn in golden.turns:
            ids = renderer.encode_reply(turn.reply.replace("<answer>", f"<answer>{spoil}"))
            assert ids[-1] == renderer.stop
            result = episode.act(renderer.decode_reply(ids))
            assert result.valid == (not spoil)
            if result.done:
                break
        wins += episode.success
    assert wins == (25 if not spoil else 0)
