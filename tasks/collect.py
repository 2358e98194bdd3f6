"""Collecting trajectories: policies and environments meet here, for `rollout` and `evaluate`.

Every prompt is the ids of the last prompt, the ids that were sampled, and the ids of the new text
only: nothing is ever decoded and encoded again (I1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from envs.base import Split
from envs.episode import Episode, TurnResult
from envs.errors import EpisodeFailure
from envs.rewards import PlayedEpisode, load_reward, turn_rewards
from models.chat import ChatRenderer
from models.engines.base import Completion, Request, StopReason
from models.engines.torch_engine import TorchEngine
from models.policy import load_tokenizer
from models.settings import Sampling
from tasks.environment import EnvironmentSettings
from tasks.errors import SettingsError
from tasks.lanes import Lanes
from tasks.trajectories import EpisodeRequest, Status, TokenSequence, Trajectory, Turn


@dataclass(frozen=True)
class Collection:
    """Everything that determines the trajectories of a list of episodes.

    Attributes:
        policy: Folder of the policy.
        weight_digest: Digest of its `model.safetensors`.
        policy_version: Number of updates behind it.
        seed: Of the sampling noise.
        cut_penalty: Subtracted in a turn whose reply was cut at the limit.
    """

    policy: Path
    weight_digest: str
    policy_version: int
    environment: EnvironmentSettings
    split: Split
    sampling: Sampling
    max_reply_tokens: int
    seed: int
    cut_penalty: float
    episodes: tuple[EpisodeRequest, ...]


def collect(collection: Collection, *, lanes: Lanes, num_lanes: int) -> list[Trajectory]:
    """Plays all episodes; the result does not depend on the number of workers.

    Args:
        collection: The episodes and what plays them. Groups are dealt to the lanes in turn.
        lanes: Executes the lanes.
        num_lanes: Number of lanes.

    Returns:
        One trajectory per episode, in the order asked.
    """
    groups = list(dict.fromkeys(request.group for request in collection.episodes))
    lane_of = {group: index % num_lanes for index, group in enumerate(groups)}
    payloads = [
        replace(
            collection,
            episodes=tuple(item for item in collection.episodes if lane_of[item.group] == lane),
        )
        for lane in range(min(num_lanes, len(groups)))
    ]
    played = {
        trajectory.request.episode: trajectory
        for lane in lanes.map(collect_lane, payloads)
        for trajectory in lane
    }
    return [played[request.episode] for request in collection.episodes]


def collect_lane(collection: Collection) -> list[Trajectory]:
    """Plays the episodes of one lane, all of them turn by turn together."""
    engine = _engine()
    if engine.weight_digest != collection.weight_digest:
        engine.load(collection.policy, digest=collection.weight_digest)
    renderer = ChatRenderer(load_tokenizer(collection.policy))
    players = [_Player(request, collection, renderer) for request in collection.episodes]
    while active := [player for player in players if player.status is None]:
        limit = engine.max_context
        asked = [
            (player, request) for player in active if (request := player.ask(limit)) is not None
        ]
        requests = [request for _, request in asked]
        completions = engine.generate(requests, sampling=collection.sampling, seed=collection.seed)
        for (player, _), completion in zip(asked, completions, strict=True):
            player.answer(completion)
        if collection.environment.turns_seen is not None:
            engine.release(request.key for request in requests)
    engine.release(request.episode for request in collection.episodes)
    return [player.trajectory(engine.weight_digest) for player in players]


@cache
def _engine() -> TorchEngine:
    """This process's engine: weights stay in memory and are reloaded when the digest differs."""
    return TorchEngine()


class _Sequence:
    """A training sequence that grows by ids."""

    def __init__(self, first_turn: int) -> None:
        self.first_turn, self.num_turns = first_turn, 0
        self.ids: list[int] = []
        self.sampled: list[bool] = []
        self.logprobs: list[float] = []
        self.keep_mass: list[float] = []
        self.turn: list[int] = []

    def append_text(self, ids: Sequence[int]) -> None:
        """Appends ids that the policy did not sample, here and now."""
        self.ids.extend(ids)
        self.sampled.extend([False] * len(ids))
        self.logprobs.extend([math.nan] * len(ids))
        self.keep_mass.extend([math.nan] * len(ids))
        self.turn.extend([-1] * len(ids))

    def append_reply(self, completion: Completion) -> None:
        """Appends what the policy sampled, id for id."""
        count = len(completion.tokens)
        self.ids.extend(completion.tokens.tolist())
        self.sampled.extend([True] * count)
        self.logprobs.extend(completion.logprobs.tolist())
        self.keep_mass.extend(completion.keep_mass.tolist())
        self.turn.extend([self.num_turns] * count)
        self.num_turns += 1

    def frozen(self) -> TokenSequence:
        """The sequence as the shard has it."""
        return TokenSequence(
            tokens=np.array(self.ids, dtype=np.int32),
            sampled=np.array(self.sampled, dtype=np.bool_),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            keep_mass=np.array(self.keep_mass, dtype=np.float32),
            turn=np.array(self.turn, dtype=np.int16),
            first_turn=self.first_turn,
            num_turns=self.num_turns,
        )


@dataclass(frozen=True)
class _Said:
    """A past turn as later contexts repeat it: its message, and the ids of its reply."""

    prompt: str
    reply: list[int]
    stopped: bool


class _Player:
    """One episode being played: its sequences so far and its environment."""

    def __init__(
        self, request: EpisodeRequest, collection: Collection, renderer: ChatRenderer
    ) -> None:
        self.request, self.collection, self.renderer = request, collection, renderer
        environment = collection.environment
        self.episode = Episode(
            environment.recipe(),
            split=collection.split,
            thinking=environment.thinking,
            invalid_penalty=environment.invalid_penalty,
        )
        self.prompt = self.episode.start(seed=request.env_seed, noise_seed=request.noise_seed)
        self.window = environment.turns_seen
        self.past: list[_Said] = []
        self.sequences = [self._begun()]
        self.turns: list[Turn] = []
        self.status: Status | None = None
        self.error = ""
        self.out_of_context = False

    @property
    def key(self) -> str:
        """Names the noise and the cache: of the episode, or of the turn where contexts differ."""
        turn = self.sequences[-1].first_turn
        return self.request.episode if self.window is None else f"{self.request.episode}#{turn}"

    def ask(self, max_context: int) -> Request | None:
        """The next request, or None when the context has no room for a reply."""
        if self.window is not None and self.sequences[-1].num_turns:
            self.sequences.append(self._begun())
        ids = self.sequences[-1].ids
        if max_context - len(ids) < self.collection.max_reply_tokens:
            if not self.turns:
                raise SettingsError(
                    f"the first prompt has {len(ids)} tokens and a reply may have "
                    f"{self.collection.max_reply_tokens}, but the policy's context is {max_context}"
                    "\nhint: lower `rollout.max_reply_tokens` or use `env.prompt=compact`"
                )
            self.status, self.out_of_context = Status.TRUNCATED, True
            if not self.sequences[-1].num_turns:
                self.sequences.pop()
            return None
        return Request(
            key=self.key,
            tokens=np.array(ids, dtype=np.int32),
            group=self.request.group,
            max_new_tokens=self.collection.max_reply_tokens,
        )

    def answer(self, completion: Completion) -> None:
        """Takes the sampled reply and plays it."""
        reply = self.renderer.decode_reply(completion.tokens)
        stopped = completion.stop_reason is StopReason.STOP_TOKEN
        sequence = self.sequences[-1]
        sequence.append_reply(completion)
        observation = self.episode.observations[-1]
        try:
            result = self._act(reply)
        except EpisodeFailure as error:
            self.status, self.error = Status.ERRORED, str(error)
            result = None
        penalty = 0.0 if stopped else -self.collection.cut_penalty
        self.turns.append(
            Turn(
                observation=observation,
                prompt=self.prompt,
                reply=reply,
                actions=result.actions if result else (),
                valid=result.valid if result else False,
                reward=result.reward if result else 0.0,
                penalty=result.penalty + penalty if result else 0.0,
                stop_reason=completion.stop_reason.value,
            )
        )
        if result is None:
            return
        if result.next_prompt is None:
            self.status = Status.FINISHED if result.terminated else Status.TRUNCATED
            return
        self.past.append(_Said(self.prompt, completion.tokens.tolist(), stopped))
        self.prompt = result.next_prompt
        if self.window is None:
            suffix = self.renderer.next_prompt_suffix(self.prompt, reply_stopped=stopped)
            sequence.append_text(suffix)

    def _begun(self) -> _Sequence:
        """A sequence that has the context of the next reply: the last turns of the window."""
        sequence = _Sequence(first_turn=len(self.past))
        shown = self.past[-(self.window - 1) :] if self.window and self.window > 1 else []
        messages = [*(said.prompt for said in shown), self.prompt]
        sequence.append_text(self.renderer.first_prompt(messages[0]))
        for said, message in zip(shown, messages[1:], strict=True):
            sequence.append_text(said.reply)
            suffix = self.renderer.next_prompt_suffix(message, reply_stopped=said.stopped)
            sequence.append_text(suffix)
        return sequence

    def _act(self, reply: str) -> TurnResult:
        """Plays the reply; a reward that is no number is a failure of the environment (A5)."""
        result = self.episode.act(reply)
        if not math.isfinite(result.reward):
            raise EpisodeFailure(
                f"the environment paid {result.reward} in turn {len(self.turns)}\n"
                "hint: rewards must be finite; the episode is left out of its group"
            )
        return result

    def trajectory(self, weight_digest: str) -> Trajectory:
        """The finished episode."""
        self._pay()
        assert self.status is not None, "the lane plays every episode to its end"  # noqa: S101
        return Trajectory(
            request=self.request,
            tag=self.collection.environment.tag,
            split=self.collection.split.value,
            policy_version=self.collection.policy_version,
            weight_digest=weight_digest,
            sequences=[sequence.frozen() for sequence in self.sequences],
            level=self.episode.level,
            stratum=self.episode.strata,
            turns=self.turns,
            status=self.status,
            success=self.episode.success,
            terminated=self.episode.terminated,
            truncated=self.episode.truncated or self.out_of_context,
            error=self.error,
            metrics=self.episode.metrics,
        )

    def _pay(self) -> None:
        """Replaces the environment's rewards by what the experiment pays for the episode."""
        environment = self.collection.environment
        if self.status is Status.ERRORED:
            return
        played = PlayedEpisode(
            observations=self.episode.observations,
            replies=tuple(turn.reply for turn in self.turns),
            actions=tuple(turn.actions for turn in self.turns),
            valid=tuple(turn.valid for turn in self.turns),
            rewards=tuple(turn.reward for turn in self.turns),
            success=self.episode.success,
            terminated=self.episode.terminated,
            truncated=self.episode.truncated or self.out_of_context,
            metrics=self.episode.metrics,
        )
        function = load_reward(environment.reward) if environment.reward else None
        try:
            paid = turn_rewards(played, function=function, timing=environment.reward_timing)
        except EpisodeFailure as error:
            self.status, self.error = Status.ERRORED, str(error)
            return
        pairs = zip(self.turns, paid, strict=True)
        self.turns = [replace(turn, reward=reward) for turn, reward in pairs]
