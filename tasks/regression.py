"""Whether a measured figure has become worse: tonight and the nights before against the history.

A figure's nights scatter by some per cent, so one night proves nothing. The mean of the last three
nights is compared with that of the nights before on a log scale, by Student's one-sided test with
the spread of the history. The level is low enough that all figures together raise at most one false
alarm in a hundred nights; whether a slowdown of five per cent would be found is said each time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.errors import SampleError

WINDOW = 3
MIN_HISTORY = 7
MAX_HISTORY = 30
FALSE_ALARMS = 0.005
"""Per night, all figures together: half of what is promised, since windows overlap."""
FLOOR = 0.004
"""Smallest spread that is believed, as a share: a figure that never moved may still move once."""
SLOWDOWN = 0.05


@dataclass(frozen=True)
class Judgement:
    """What the last nights say about one figure, for which larger is worse.

    Attributes:
        change: Mean of the last nights over that of the history, minus 1.
        threshold: The change from which it counts as a regression.
        power: Chance that a lasting slowdown of five per cent is found within three nights.
        num_history: Nights of the history; with fewer than seven nothing is judged.
        spread: Of the history, as a share.
    """

    change: float
    threshold: float
    power: float
    num_history: int
    spread: float

    @property
    def is_regression(self) -> bool:
        """Whether it became worse."""
        return self.change >= self.threshold


def judge(values: Sequence[float], *, num_figures: int) -> Judgement:
    """Judges one figure.

    Args:
        values: One per night, oldest first, tonight last; positive.
        num_figures: Figures that are judged together; they share the level.

    Raises:
        SampleError: No values, or one that is not positive and finite.
    """
    logs = np.array(values, dtype=np.float64)
    if not logs.size or not (np.isfinite(logs) & (logs > 0)).all():
        raise SampleError(f"a figure needs positive finite values, got {list(values)[-5:]}")
    logs = np.log(logs)
    window = min(WINDOW, max(1, logs.size - MIN_HISTORY))
    history, recent = logs[:-window][-MAX_HISTORY:], logs[-window:]
    if history.size < MIN_HISTORY:
        return Judgement(0.0, math.inf, 0.0, int(history.size), math.nan)
    spread = max(float(history.std(ddof=1)), FLOOR)
    change = float(recent.mean() - history.mean())
    threshold = _critical(int(history.size), num_figures) * _error(history.size, window) * spread
    return Judgement(
        change=math.expm1(change),
        threshold=math.expm1(threshold),
        power=power(spread, num_history=int(history.size), num_figures=num_figures),
        num_history=int(history.size),
        spread=spread,
    )


def power(spread: float, *, num_history: int, num_figures: int) -> float:
    """Chance to find a lasting slowdown of five per cent once three slow nights are in.

    Args:
        spread: Standard deviation of a night, as a share.
        num_history: Nights before.
        num_figures: Figures that share the level.
    """
    from scipy.stats import nct  # noqa: PLC0415 - half a second

    shift = math.log1p(SLOWDOWN) / (spread * _error(num_history, WINDOW))
    return float(nct.sf(_critical(num_history, num_figures), num_history - 1, shift))


def _critical(num_history: int, num_figures: int) -> float:
    from scipy.stats import t  # noqa: PLC0415 - half a second

    return float(t.isf(FALSE_ALARMS / num_figures, num_history - 1))


def _error(num_history: int, window: int) -> float:
    return math.sqrt(1 / window + 1 / num_history)
