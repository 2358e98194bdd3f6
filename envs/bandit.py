"""Bandit: one pull between a safe and a risky arm, each named after a profession."""

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from envs.base import Split, TextEnvironment
from envs.grids import paint
from envs.seeding import generator
from envs.splits import split_of

Pair = tuple[str, str]

TRAINING_PAIRS: tuple[Pair, ...] = (
    ("Nurse", "Pilot"),
    ("Clerk", "Pirate"),
    ("Baker", "Gambler"),
    ("Tailor", "Diver"),
    ("Monk", "Racer"),
    ("Gardener", "Rebel"),
    ("Tutor", "Smuggler"),
    ("Banker", "Boxer"),
    ("Florist", "Miner"),
    ("Potter", "Bandit"),
    ("Barber", "Hunter"),
    ("Dentist", "Sailor"),
)
"""(safe, risky) professions of the training instances."""

UNSEEN_PAIRS: tuple[Pair, ...] = (
    ("Teacher", "Surfer"),
    ("Librarian", "Stuntman"),
    ("Notary", "Climber"),
    ("Pharmacist", "Matador"),
    ("Weaver", "Explorer"),
    ("Accountant", "Acrobat"),
    ("Shepherd", "Astronaut"),
    ("Butler", "Firefighter"),
)
"""(safe, risky) professions that occur in no training pair."""

RECOMBINED_PAIRS: tuple[Pair, ...] = tuple(
    (safe, risky) for safe, _ in TRAINING_PAIRS for _, risky in TRAINING_PAIRS
)
"""Every (safe, risky) pair of the training professions; a stable hash splits them."""


class Names(StrEnum):
    """Which professions meet, and how evaluation differs from training.

    PAIRS: twelve fixed pairs, and eight of other professions for evaluation; a policy must know
        what a name suggests.
    RECOMBINED: all pairs of the training professions, four in five for training; fit for a policy
        that knows no language and cannot copy a name that it never wrote.
    """

    PAIRS = "pairs"
    RECOMBINED = "recombined"


class BanditSettings(BaseModel):
    """Settings of `Bandit`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    safe_payout: float = Field(
        default=0.1, ge=0, le=1, description="reward of the safe arm (0.15 in the first paper)"
    )
    risky_payout: float = Field(
        default=1.0, gt=0, le=10, description="reward of the risky arm when it pays"
    )
    risky_probability: float = Field(
        default=0.25, ge=0, le=1, description="probability that the risky arm pays"
    )
    swapped: bool = Field(
        default=False, description="whether the name that suggests safety is the risky arm"
    )
    names: Names = Field(
        default=Names.PAIRS, description="how professions meet in pairs: pairs | recombined"
    )


class Bandit(TextEnvironment):
    """One pull between two arms; success = the risky arm was chosen, whatever it paid.

    The pair and the order of the names follow from the seed; only the payout is chance.
    """

    settings_class: ClassVar[type[BaseModel]] = BanditSettings
    settings: BanditSettings

    def __init__(
        self,
        settings: BanditSettings | None = None,
        *,
        split: Split = Split.TRAIN,
        render_mode: str | None = None,
    ):
        super().__init__(settings, split=split, render_mode=render_mode)
        self._pairs = self.pairs()
        self._pair: Pair = self._pairs[0]
        self._risky_index = 0
        self._pulled: int | None = None
        self._noise = self._player = generator("bandit")
        self._name_actions(self._pair)

    def pairs(self) -> tuple[Pair, ...]:
        """Returns the (suggests safety, suggests risk) names of this split."""
        if self.settings.names is Names.RECOMBINED:
            return tuple(
                pair for pair in RECOMBINED_PAIRS if split_of("|".join(pair)) is self.split
            )
        return TRAINING_PAIRS if self.split is Split.TRAIN else UNSEEN_PAIRS

    def _begin(self, seed: int, noise: random.Random) -> None:
        draw = generator("bandit", self.split, seed)
        self._pair = draw.choice(self._pairs)
        names = list(self._pair)
        draw.shuffle(names)
        self._name_actions(names)
        self._risky_index = names.index(self._pair[0 if self.settings.swapped else 1])
        self._pulled = None
        self._noise = noise
        self._player = generator("bandit player", seed)

    def _apply(self, index: int) -> tuple[float, bool, bool, bool]:
        paid = self._noise.random() < self.settings.risky_probability
        risky = index == self._risky_index
        self._pulled = index
        self._success = risky
        if not risky:
            return self.settings.safe_payout, True, False, True
        return (self.settings.risky_payout if paid else 0.0), True, False, True

    def _intend(self, index: int) -> None:
        self._pulled = index
        self._over = True

    def observation(self) -> str:
        """Returns the two names in their order, and the arm that was pulled."""
        if self._pulled is None:
            return f"Two arms: {self.action_names[0]} and {self.action_names[1]}."
        return f"You pulled {self.action_names[self._pulled]}."

    def compact(self) -> str:
        """Returns the two names in their order."""
        return f"{self.action_names[0]} or {self.action_names[1]}"

    def legend(self) -> str:
        """Returns nothing: the observation has no signs."""
        return ""

    def picture(self) -> NDArray[np.uint8]:
        """Returns two squares, one for each arm; the pulled one is bright."""
        row = "".join("x" if index == self._pulled else "." for index in range(2))
        return paint([row], palette={".": (110, 110, 130), "x": (240, 200, 60)})

    def level(self) -> str:
        """Returns the pair of names, whatever their order on the screen."""
        return "|".join(self._pair)

    def strata(self) -> str:
        """Returns nothing: there is one kind of pair."""
        return ""

    def optimal_action(self) -> str:
        """Returns the arm with the larger expected reward."""
        expected = self.settings.risky_payout * self.settings.risky_probability
        risky = expected >= self.settings.safe_payout
        return self.action_names[self._risky_index if risky else 1 - self._risky_index]

    def naive_action(self) -> str:
        """Returns an arm at random: a player who reads nothing into the names."""
        return self._player.choice(self.action_names)

    def trace(self, actions: Sequence[str]) -> str:
        """Returns the arm to pull, for instance `pick Pilot`."""
        return f"pick {actions[0]}" if actions else "pick"
