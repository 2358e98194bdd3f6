"""Progress in the terminal, one line that moves; plain lines where it cannot."""

import logging
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

AnyLogger = logging.Logger | logging.LoggerAdapter[logging.Logger]


class TrainingProgress:
    """Shows iterations; use as a context manager.

    Args:
        total: Number of iterations.
        console: Where to draw; without a terminal every tenth iteration is logged instead.
        logger: Receives the plain lines.
    """

    def __init__(self, total: int, *, console: Console, logger: AnyLogger) -> None:
        self.total, self.logger, self.live = total, logger, console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("warm start", total=total, numbers="")

    def __enter__(self) -> "TrainingProgress":
        if self.live:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self._bar.stop()

    def show(self, iteration: int, metrics: dict[str, float]) -> None:
        """Moves to `iteration` and shows its most telling numbers."""
        names = {"rollout/success": "success", "rollout/return": "return"}
        names |= {"evaluate/success": "evaluation"}
        numbers = "  ".join(
            f"{label} {metrics[name]:.2f}" for name, label in names.items() if name in metrics
        )
        done = min(iteration + 1, self.total)
        self._bar.update(self._task, completed=done, description="training", numbers=numbers)
        if not self.live and (iteration % 10 == 0 or done == self.total):
            self.logger.info("iteration %d of %d  %s", done, self.total, numbers)


class SweepProgress:
    """Shows how many runs of a sweep have ended; use as a context manager.

    Args:
        name: Of the sweep.
        total: Number of runs.
        console: Where to draw; without a terminal each end is logged instead.
        logger: Receives the plain lines.
    """

    def __init__(self, name: str, total: int, *, console: Console, logger: AnyLogger) -> None:
        self.total, self.logger, self.live = total, logger, console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total, last="")
        self._ended = 0

    def __enter__(self) -> "SweepProgress":
        if self.live:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self._bar.stop()

    def ended(self, title: str) -> None:
        """Counts a run that has ended."""
        self._ended += 1
        self._bar.update(self._task, completed=self._ended, last=f"last: {title}")
        if not self.live:
            self.logger.info("%d of %d runs ended, last %s", self._ended, self.total, title)
