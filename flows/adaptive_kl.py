"""The coefficient of the KL term: fixed, or following a target (arXiv 1909.08593, section 2.2)."""

from collections.abc import Iterable

from models.settings import LossSettings

LARGEST_ERROR = 0.2


def kl_coefficient(loss: LossSettings, measured: Iterable[float], *, num_episodes: int) -> float:
    """The coefficient after some iterations.

    Each iteration multiplies it by 1 + clip(KL / target - 1, -0.2, 0.2) x episodes / horizon.

    Args:
        loss: Initial coefficient, target and horizon.
        measured: KL to the reference policy per token, of each iteration so far.
        num_episodes: Episodes of an iteration.
    """
    coefficient = loss.kl_coefficient
    if loss.kl_target is None:
        return coefficient
    for kl in measured:
        error = min(max(kl / loss.kl_target - 1, -LARGEST_ERROR), LARGEST_ERROR)
        coefficient *= 1 + error * num_episodes / loss.kl_horizon
    return coefficient
