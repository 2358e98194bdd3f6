"""Progress of a training run in the terminal, one line that moves; plain lines where it cannot."""

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


class TrainingProgress:
    """Shows iterations; use as a context manager.

    Args:
        total: Number of iterations.
        console: Where to draw; without a terminal every tenth iteration is logged instead.
        logger: Receives the plain lines.
    """

    def __init__(self, total: int, *, console: Console, logger: logging.Logger) -> None:
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
