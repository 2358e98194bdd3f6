"""Intervals and unbiased estimates for evaluations."""

import math

from scipy.stats import binomtest


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Wilson's score interval of a success rate (Wilson 1927).

    Args:
        successes: Number of successes.
        trials: Number of independent trials, at least 1.
        confidence: Coverage, for instance 0.95.

    Returns:
        Lower and upper bound, in [0, 1].
    """
    interval = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples succeeds: 1 - C(n-c, k)/C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), section 2.1.

    Args:
        samples: Samples drawn, n.
        successes: Successful ones, c.
        k: At most n.

    Raises:
        ValueError: k is larger than the number of samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k={k} with {samples} samples\nhint: k is between 1 and the samples")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)
