"""Episodes played for real by a small untrained policy: what ends up in the shard, and when."""

from pathlib import Path

import numpy as np
import pytest

from envs.base import Split
from envs.demonstrations import DemonstrationSettings, demonstrate
from envs.episode import Episode
from models.chat import ChatRenderer
from models.nano import NanoSettings, build_nano
from models.policy import load_tokenizer, save_policy, weights_digest
from models.sampling import Sampling
from tasks.collect import Collection, collect
from tasks.environment import EnvironmentSettings
from tasks.errors import SettingsError
from tasks.lanes import Lanes
from tasks.rollout import RolloutSettings, training_episodes
from tasks.trajectories import Trajectory

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
    policy: Path, *, workers: int = 1, max_reply_tokens: int = 8, cut_penalty: float = 0.0
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
        return collect(collection, lanes=lanes, num_lanes=2)


def test_R9_the_mask_says_who_sampled_a_token(policy: Path) -> None:
    renderer = ChatRenderer(load_tokenizer(policy))
    for row in _collect(policy):
        start = renderer.first_prompt(row.turns[0].prompt)
        assert row.tokens[: len(start)].tolist() == start
        assert not row.sampled[: len(start)].any()
        assert row.sampled[len(start)]
        for index, turn in enumerate(row.turns):
            ids = row.tokens[row.turn == index]
            assert renderer.decode_reply(ids) == turn.reply


def test_I7_two_workers_play_the_same_bits(policy: Path) -> None:
    for first, second in zip(_collect(policy), _collect(policy, workers=2), strict=True):
        assert first.request == second.request
        assert np.array_equal(first.tokens, second.tokens)
        assert first.logprobs.tobytes() == second.logprobs.tobytes()


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
