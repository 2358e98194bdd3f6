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
from models.chat import ChatRenderer
from models.engines.base import Completion, Request, StopReason
from models.engines.torch_engine import TorchEngine
from models.policy import load_tokenizer
from models.settings import Sampling
from tasks.environment import EnvironmentSettings
from tasks.errors import SettingsError
from tasks.lanes import Lanes
from tasks.trajectories import EpisodeRequest, Status, Trajectory, Turn


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
        requests = [player.ask(limit) for player in active]
        asked = [request for request in requests if request is not None]
        completions = engine.generate(asked, sampling=collection.sampling, seed=collection.seed)
        answers = {completion.key: completion for completion in completions}
        for player in active:
            if player.request.episode in answers:
                player.answer(answers[player.request.episode])
    engine.release([request.episode for request in collection.episodes])
    return [player.trajectory(engine.weight_digest) for player in players]


@cache
def _engine() -> TorchEngine:
    """This process's engine: weights stay in memory and are reloaded when the digest differs."""
    return TorchEngine()


class _Player:
    """One episode being played: its ids so far and its environment."""

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
        self.ids: list[int] = list(renderer.first_prompt(self.prompt))
        self.sampled = [False] * len(self.ids)
        self.logprobs = [float("nan")] * len(self.ids)
        self.keep_mass = [float("nan")] * len(self.ids)
        self.turn = [-1] * len(self.ids)
        self.turns: list[Turn] = []
        self.status: Status | None = None
        self.error = ""
        self.out_of_context = False

    def ask(self, max_context: int) -> Request | None:
        """The next request, or None when the context has no room for a reply."""
        room = max_context - len(self.ids)
        if room < self.collection.max_reply_tokens:
            if not self.turns:
                raise SettingsError(
                    f"the first prompt has {len(self.ids)} tokens and a reply may have "
                    f"{self.collection.max_reply_tokens}, but the policy's context is {max_context}"
                    "\nhint: lower `rollout.max_reply_tokens` or use `env.prompt=compact`"
                )
            self.status, self.out_of_context = Status.TRUNCATED, True
            return None
        return Request(
            key=self.request.episode,
            tokens=np.array(self.ids, dtype=np.int32),
            group=self.request.group,
            max_new_tokens=self.collection.max_reply_tokens,
        )

    def answer(self, completion: Completion) -> None:
        """Takes the sampled reply and plays it."""
        reply = self.renderer.decode_reply(completion.tokens)
        stopped = completion.stop_reason is StopReason.STOP_TOKEN
        self._append_reply(completion)
        try:
            result = self._act(reply)
        except EpisodeFailure as error:
            self.status, self.error = Status.ERRORED, str(error)
            self._log(reply, completion, actions=(), valid=False, reward=0.0, penalty=0.0)
            return
        self._log(
            reply,
            completion,
            actions=result.actions,
            valid=result.valid,
            reward=result.reward,
            penalty=result.penalty - (0.0 if stopped else self.collection.cut_penalty),
        )
        if result.next_prompt is None:
            self.status = Status.FINISHED if result.terminated else Status.TRUNCATED
            return
        self.prompt = result.next_prompt
        self._append_text(self.renderer.next_prompt_suffix(self.prompt, reply_stopped=stopped))

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
        assert self.status is not None, "the lane plays every episode to its end"  # noqa: S101
        return Trajectory(
            request=self.request,
            tag=self.collection.environment.tag,
            split=self.collection.split.value,
            policy_version=self.collection.policy_version,
            weight_digest=weight_digest,
            tokens=np.array(self.ids, dtype=np.int32),
            sampled=np.array(self.sampled, dtype=np.bool_),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            keep_mass=np.array(self.keep_mass, dtype=np.float32),
            turn=np.array(self.turn, dtype=np.int16),
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

    def _append_reply(self, completion: Completion) -> None:
        """Appends what the policy sampled, id for id."""
        count = len(completion.tokens)
        self.ids.extend(completion.tokens.tolist())
        self.sampled.extend([True] * count)
        self.logprobs.extend(completion.logprobs.tolist())
        self.keep_mass.extend(completion.keep_mass.tolist())
        self.turn.extend([len(self.turns)] * count)

    def _append_text(self, ids: Sequence[int]) -> None:
        """Appends ids that the policy did not sample."""
        self.ids.extend(ids)
        self.sampled.extend([False] * len(ids))
        self.logprobs.extend([float("nan")] * len(ids))
        self.keep_mass.extend([float("nan")] * len(ids))
        self.turn.extend([-1] * len(ids))

    def _log(
        self,
        reply: str,
        completion: Completion,
        *,
        actions: tuple[str, ...],
        valid: bool,
        reward: float,
        penalty: float,
    ) -> None:
        self.turns.append(
            Turn(
                prompt=self.prompt,
                reply=reply,
                actions=actions,
                valid=valid,
                reward=reward,
                penalty=penalty,
                stop_reason=completion.stop_reason.value,
            )
        )
