"""Intervals and unbiased estimates for evaluations."""

import math

import numpy as np
from numpy.typing import ArrayLike

from tasks.errors import SampleError


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
    from scipy.stats import binomtest  # noqa: PLC0415 - half a second

    interval = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def newcombe_interval(
    first: tuple[int, int], second: tuple[int, int], *, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a difference of success rates, second - first, of independent trials.

    Newcombe 1998, method 10: the square-and-add combination of the two Wilson intervals.

    Args:
        first: Successes and trials of the first sample.
        second: Successes and trials of the second sample.
        confidence: Coverage, for instance 0.95.

    Returns:
        Lower and upper bound, in [-1, 1].
    """
    rate_first, rate_second = first[0] / first[1], second[0] / second[1]
    low_first, high_first = wilson_interval(*first, confidence=confidence)
    low_second, high_second = wilson_interval(*second, confidence=confidence)
    difference = rate_second - rate_first
    return (
        difference - math.hypot(rate_second - low_second, high_first - rate_first),
        difference + math.hypot(high_second - rate_second, rate_first - low_first),
    )


def bootstrap_mean_interval(
    values: ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 10_000
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean (Efron 1979), the same for the same seed.

    Args:
        values: Independent observations, [n], at least one; for episodes of several groups, pass
            one number per group, because members of a group are not independent.
        seed: Of the resampling.
        confidence: Coverage, for instance 0.95.
        resamples: Number of resampled means.

    Returns:
        Lower and upper bound.

    Raises:
        SampleError: No values, or one that is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not sample.size or not np.isfinite(sample).all():
        raise SampleError(
            f"a mean needs finite values, got {sample.tolist()[:5]}\nhint: drop errored episodes"
        )
    rng = np.random.default_rng(seed)
    chunk = max(1, 4_000_000 // sample.size)
    means = [
        sample[rng.integers(sample.size, size=(min(chunk, resamples - start), sample.size))].mean(1)
        for start in range(0, resamples, chunk)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def paired_difference_interval(
    first: ArrayLike,
    second: ArrayLike,
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> tuple[float, float]:
    """Bootstrap interval of the mean of second - first, instance by instance.

    Two policies that play the same instances differ by less than two that do not: the instances'
    own difficulty cancels.

    Args:
        first: One number per instance, [n].
        second: One number per instance, [n], in the same order.
        seed: Of the resampling.
        confidence: Coverage, for instance 0.95.
        resamples: Number of resampled means.

    Raises:
        SampleError: Different numbers of instances, none, or a value that is not finite.
    """
    before, after = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if before.shape != after.shape:
        raise SampleError(
            f"{before.size} and {after.size} values cannot be paired\n"
            "hint: pass one value per instance, the same instances in the same order"
        )
    return bootstrap_mean_interval(
        after - before, seed=seed, confidence=confidence, resamples=resamples
    )


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples succeeds: 1 - C(n-c, k)/C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), section 2.1.

    Args:
        samples: Samples drawn, n.
        successes: Successful ones, c.
        k: At most n.

    Raises:
        SampleError: k is not between 1 and the number of samples, or c is not between 0 and n.
    """
    if not (1 <= k <= samples and 0 <= successes <= samples):
        raise SampleError(
            f"pass@{k} with {successes} of {samples} samples\n"
            "hint: k is between 1 and the samples, the successes between 0 and the samples"
        )
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)
