"""Statistics of a sweep: means over seeds, paired differences, Holm's correction.

Few seeds are the rule (five), where a percentile bootstrap covers too little: its 95 % intervals of
five normal values hold the mean in about 84 % of studies. Student's t holds what it says for values
that are roughly normal, and means of hundreds of episodes are. Values that are all the same tell
nothing of their spread, as a single one does: success over few episodes takes few values, and two
seeds that happen to agree are no certainty.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tasks.errors import SampleError

CONFIDENCE = 0.95
POWER = 0.8
SMALLEST_SPREAD = 1e-9
"""Values closer than this are the same; what is left of equal ones after a subtraction."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """An arm against the reference arm, paired by seed.

    Attributes:
        difference: Arm minus reference, with its own 95 % interval.
        corrected: The interval at the confidence that Holm's step leaves to it.
        p_value: Holm's adjusted p-value, two-sided.
        num_seeds: Pairs.
        detectable: The smallest difference that this many pairs would have told apart in four of
            five studies, at the strictest level of Holm's steps; infinite for a single pair.
    """

    difference: MeanInterval
    corrected: MeanInterval
    p_value: float
    num_seeds: int
    detectable: float

    @property
    def is_distinguishable(self) -> bool:
        """Whether the corrected interval leaves 0 out."""
        return self.corrected.low > 0 or self.corrected.high < 0


def mean_interval(values: ArrayLike, *, confidence: float = CONFIDENCE) -> MeanInterval:
    """Student's interval of a mean.

    Args:
        values: Independent observations, at least one; those without a spread have an unbounded
            interval.
        confidence: Coverage.

    Raises:
        SampleError: No values, or one that is not finite.
    """
    from scipy.stats import t  # noqa: PLC0415 - half a second

    sample = np.asarray(values, dtype=np.float64)
    if not sample.size or not np.isfinite(sample).all():
        raise SampleError(f"a mean needs finite values, got {sample.tolist()[:5]}")
    mean = float(sample.mean())
    spread = _spread(sample)
    if spread is None:
        return MeanInterval(mean, -math.inf, math.inf)
    error = spread / math.sqrt(sample.size)
    half = float(t.ppf(0.5 + confidence / 2, sample.size - 1)) * error
    return MeanInterval(mean, mean - half, mean + half)


def compare_arms(
    values: Mapping[str, Mapping[int, float]], *, references: Mapping[str, str]
) -> dict[str, Comparison]:
    """Every arm against its reference arm; Holm's correction is over all of them.

    Args:
        values: By arm, one number per seed; pairs are formed by seed.
        references: By arm, the arm that it is compared with; a reference arm names itself.

    Returns:
        By arm, those with at least one pair, in the order given.
    """
    differences = {
        arm: row
        for arm, numbers in values.items()
        if references[arm] != arm and (row := paired(values.get(references[arm], {}), numbers))
    }
    p_values = {arm: _p_value(row) for arm, row in differences.items()}
    ranked = sorted(p_values, key=lambda arm: p_values[arm])
    adjusted: dict[str, tuple[float, float]] = {}
    largest = 0.0
    for rank, arm in enumerate(ranked):
        left = len(ranked) - rank
        largest = max(largest, min(1.0, left * p_values[arm]))
        adjusted[arm] = (largest, 1 - (1 - CONFIDENCE) / left)
    return {
        arm: Comparison(
            difference=mean_interval(row),
            corrected=mean_interval(row, confidence=adjusted[arm][1]),
            p_value=adjusted[arm][0],
            num_seeds=len(row),
            detectable=detectable_difference(row, level=(1 - CONFIDENCE) / len(differences)),
        )
        for arm, row in differences.items()
    }


def detectable_difference(
    differences: Sequence[float], *, level: float, power: float = POWER
) -> float:
    """The smallest true mean that a two-sided paired test of this size and spread tells from 0.

    The usual approximation: (t at 1 - level / 2 + t at the power) standard errors.

    Args:
        differences: Paired differences; their spread is taken for the true one.
        level: Chance of a false alarm.
        power: Chance of finding it.
    """
    from scipy.stats import t  # noqa: PLC0415 - half a second

    num = len(differences)
    spread = _spread(differences)
    if spread is None:
        return math.inf
    error = spread / math.sqrt(num)
    return float(t.ppf(1 - level / 2, num - 1) + t.ppf(power, num - 1)) * error


def paired(reference: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Other minus reference for the seeds that both have, in order of seed."""
    return [other[seed] - reference[seed] for seed in sorted(set(reference) & set(other))]


def _spread(values: ArrayLike) -> float | None:
    """Standard deviation; None for values that tell nothing of it: a single one, or equal ones."""
    sample = np.asarray(values, dtype=np.float64)
    spread = float(sample.std(ddof=1)) if sample.size > 1 else 0.0
    return spread if spread > SMALLEST_SPREAD else None


def _p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of Student's paired test; 1 for differences without a spread."""
    from scipy.stats import t  # noqa: PLC0415 - half a second

    spread = _spread(differences)
    if spread is None:
        return 1.0
    num = len(differences)
    statistic = float(np.mean(differences)) / (spread / math.sqrt(num))
    return float(2 * t.sf(abs(statistic), num - 1))


@dataclass(frozen=True)
class CurveSummary:
    """What a learning curve comes to.

    Attributes:
        final: Its last value.
        peak: Its largest value.
        area: Mean height over the iterations, by the trapezoid rule.
        drop: From its peak to its end.
        collapse: First iteration from which it stays below half of its peak; None without one.
    """

    final: float
    peak: float
    area: float
    drop: float
    collapse: int | None


def summarise_curve(curve: Mapping[int, float]) -> CurveSummary:
    """Summary of a curve of values by iteration, at least one."""
    steps = np.array(sorted(curve))
    heights = np.array([curve[int(step)] for step in steps])
    peak = float(heights.max())
    width = float(steps[-1] - steps[0])
    area = float(np.trapezoid(heights, steps) / width) if width else float(heights[0])
    low = heights < peak / 2
    above = np.flatnonzero(~low)
    first = int(above[-1]) + 1
    collapse = int(steps[first]) if first < len(steps) and peak > 0 else None
    final = float(heights[-1])
    return CurveSummary(final, peak, area, peak - final, collapse)
