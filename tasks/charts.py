"""Charts as SVG text: small, deterministic, readable in light and dark, values on hover."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 26
NUM_TICKS = 4
ROW_HEIGHT, LABEL_WIDTH = 22, 128
MARGIN, CAPTION = 14, 22
STYLES = Path(__file__).parent / "templates"


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
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
        top=TOP,
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


@dataclass(frozen=True)
class Bar:
    """A mean with its interval, one row of an interval chart.

    Attributes:
        name: Shown at its left.
        value: The mean.
        low: Lower end of its interval; None without one.
        high: Upper end.
        role: `main` or `second`: its colour.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    role: str = "main"


def interval_chart(bars: Sequence[Bar], *, label: str) -> str:
    """An SVG element with a dot and its interval per row.

    Args:
        bars: At least one, from top to bottom.
        label: For readers that do not see it.
    """
    height = TOP + ROW_HEIGHT * len(bars) + BOTTOM
    ends = [value for bar in bars for value in (bar.value, bar.low, bar.high) if value is not None]
    ticks = nice_ticks(ends)
    scale = _Scale(LABEL_WIDTH, WIDTH - RIGHT, height - BOTTOM, TOP, ticks[0], ticks[-1], 0, 1)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
    ]
    for tick in ticks:
        x = scale.x(tick)
        parts.append(
            f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - BOTTOM}"/>'
            f'<text class="tick" x="{x}" y="{height - 8}" text-anchor="middle">'
            f"{_number(tick)}</text>"
        )
    for row, bar in enumerate(bars):
        y = TOP + ROW_HEIGHT * (row + 0.5)
        parts.append(
            f'<text class="tick" x="{LABEL_WIDTH - 10}" y="{y + 3.5}" text-anchor="end">'
            f"{escape(bar.name)}</text>"
        )
        text = f"{bar.name}: {bar.value:.4g}"
        if bar.low is not None and bar.high is not None:
            ends_x = f'x1="{scale.x(bar.low)}" x2="{scale.x(bar.high)}"'
            parts.append(f'<line class="line {bar.role}" {ends_x} y1="{y}" y2="{y}"/>')
            text += f" [{bar.low:.4g}, {bar.high:.4g}]"
        parts.append(
            f'<circle class="dot {bar.role}" cx="{scale.x(bar.value)}" cy="{y}" r="4.5">'
            f"<title>{escape(text)}</title></circle>"
        )
    return "".join([*parts, "</svg>"])


def sheet(charts: Sequence[tuple[str, str]], *, label: str, columns: int = 2) -> str:
    """Charts side by side as an SVG file of its own, with its styles in it.

    Args:
        charts: Caption and SVG element of each.
        label: For readers that do not see it.
        columns: Charts in a row.
    """
    rows = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    parts, y = [], MARGIN
    for row in rows:
        for column, (caption, element) in enumerate(row):
            x = MARGIN + column * (WIDTH + MARGIN)
            place = f'<svg x="{x}" y="{y + CAPTION}" width="{WIDTH}" height="{_height(element)}"'
            parts.append(f'<text class="caption" x="{x}" y="{y + 15}">{escape(caption)}</text>')
            parts.append(element.replace("<svg", place, 1))
        y += CAPTION + MARGIN + max(_height(element) for _, element in row)
    width = MARGIN + min(columns, len(charts)) * (WIDTH + MARGIN)
    style = "".join((STYLES / name).read_text() for name in ("colours.css", "charts.css"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" '
        f'height="{y}" role="img" aria-label="{escape(label, quote=True)}"><style>{style}</style>'
        f'<rect class="paper" width="{width}" height="{y}"/>{"".join(parts)}</svg>\n'
    )


def _height(element: str) -> int:
    return int(element.split('"', 2)[1].split()[3])


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
    """From values to places in the drawing."""

    left: float
    right: float
    bottom: float
    top: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return round(self.bottom - share * (self.bottom - self.top), 1)


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
