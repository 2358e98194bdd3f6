"""Line charts as SVG text: small, deterministic, readable in light and dark, values on hover."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 26
NUM_TICKS = 4


@dataclass(frozen=True)
class Point:
    """One value of a curve.

    Attributes:
        x: Iteration.
        y: Value.
        low: Lower end of its interval; None without one.
        high: Upper end.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        name: Shown in the legend.
        points: In order of x.
        role: `main` or `second`: its colour.
        dots: Whether each point gets a visible dot.
    """

    name: str
    points: Sequence[Point]
    role: str = "main"
    dots: bool = False


def line_chart(curves: Sequence[Curve], *, label: str) -> str:
    """An SVG element with axes, bands, lines and hover texts.

    Args:
        curves: At least one with at least one point.
        label: For readers that do not see it.
    """
    points = [point for curve in curves for point in curve.points]
    values = [value for point in points for value in (point.y, point.low, point.high)]
    ticks = nice_ticks([value for value in values if value is not None and math.isfinite(value)])
    scale = _Scale(
        x_low=min(point.x for point in points),
        x_high=max(point.x for point in points),
        y_low=ticks[0],
        y_high=ticks[-1],
    )
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label, quote=True)}">'
    ]
    parts += [_grid_line(tick, scale) for tick in ticks]
    parts += [_x_label(x, scale) for x in sorted({scale.x_low, scale.x_high})]
    for curve in curves:
        parts += _curve(curve, scale)
    return "".join([*parts, "</svg>"])


def nice_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers from below the smallest value to above the largest.

    Example:
        >>> nice_ticks([0.1, 0.93])
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high == low:
        low, high = (0.0, 1.0) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    rough = (high - low) / NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


@dataclass(frozen=True)
class _Scale:
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _grid_line(tick: float, scale: _Scale) -> str:
    y = scale.y(tick)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{_number(tick)}</text>'
    )


def _number(value: float) -> str:
    """A short number: `0.25`, `1200`, `5e-06`."""
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:g}"


def _x_label(x: float, scale: _Scale) -> str:
    anchor = "start" if x == scale.x_low else "end"
    return (
        f'<text class="tick" x="{scale.x(x)}" y="{HEIGHT - 8}" text-anchor="{anchor}">{x:g}</text>'
    )


def _curve(curve: Curve, scale: _Scale) -> list[str]:
    points = [point for point in curve.points if math.isfinite(point.y)]
    parts = []
    banded = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if banded:
        upper = [f"{scale.x(x)},{scale.y(high)}" for x, _, high in banded]
        lower = [f"{scale.x(x)},{scale.y(low)}" for x, low, _ in reversed(banded)]
        parts.append(f'<polygon class="band {curve.role}" points="{" ".join(upper + lower)}"/>')
    line = " ".join(f"{scale.x(point.x)},{scale.y(point.y)}" for point in points)
    parts.append(f'<polyline class="line {curve.role}" points="{line}"/>')
    for point in points:
        text = f"{curve.name}: {point.y:.4g} at iteration {point.x:g}"
        if point.low is not None and point.high is not None:
            text += f" [{point.low:.4g}, {point.high:.4g}]"
        visible = "dot" if curve.dots else "spot"
        parts.append(
            f'<circle class="{visible} {curve.role}" cx="{scale.x(point.x)}" '
            f'cy="{scale.y(point.y)}" r="{3 if curve.dots else 5}">'
            f"<title>{escape(text)}</title></circle>"
        )
    return parts
