"""An environment and a reward of one's own: walk along a line of cells to the goal.

starpo train env.tag=walk:Walk env.reward=walk:shorter_is_better train.iterations=20
"""

import random
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from envs.base import TextEnvironment
from envs.rewards import PlayedEpisode
from envs.seeding import generator
from envs.splits import split_of

CELLS = 16


class WalkSettings(BaseModel):
    """Settings of the environment: `env.settings.goal_reward=2`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    goal_reward: float = 1.0


class Walk(TextEnvironment):
    """You stand on a line of cells. Walk to the goal in few steps."""

    settings_class = WalkSettings
    settings: WalkSettings

    def _begin(self, seed: int, noise: random.Random) -> None:
        del noise  # no chance inside an episode
        self._name_actions(["Left", "Right"])
        draw = generator("walk", seed)
        while True:  # until an instance of this split
            self.place, self.goal = draw.sample(range(CELLS), 2)
            self.start = self.place
            if split_of(self.level()) is self.split:
                return

    def _apply(self, index: int) -> tuple[float, bool, bool, bool]:
        before = self.place
        self.place = min(max(self.place + (1 if index else -1), 0), CELLS - 1)
        self._success = self.place == self.goal
        reward = self.settings.goal_reward if self._success else 0.0
        return reward, self._success, False, self.place != before

    def observation(self) -> str:
        """Returns the state as text."""
        cells = ["."] * CELLS
        cells[self.goal], cells[self.place] = "G", "P"
        return "".join(cells)

    def level(self) -> str:
        """Returns the instance as text."""
        return f"{self.start} to {self.goal}"

    def trace(self, actions: Sequence[str]) -> str:
        """Returns the thought that precedes the actions in a demonstration."""
        return f"goal {'right' if self.goal > self.place else 'left'}"

    def optimal_action(self) -> str:
        """Returns the best action: a warm start of a nano policy is demonstrated with it."""
        return "Right" if self.goal > self.place else "Left"


def shorter_is_better(played: PlayedEpisode) -> float:
    """Pays for success, less for every action: one number is paid at the end of the episode."""
    num_actions = sum(len(actions) for actions in played.actions)
    return float(played.success) - 0.05 * num_actions
