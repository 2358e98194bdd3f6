import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.charts import Curve, Point, line_chart, nice_ticks


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_ticks_enclose_the_values_in_equal_steps(values: list[float]) -> None:
    ticks = nice_ticks(values)
    room = 1e-6 * max(1.0, *map(abs, values))
    assert ticks[0] <= min(values) + room
    assert ticks[-1] >= max(values) - room
    assert 2 <= len(ticks) <= 8


def test_a_chart_is_whole_xml_with_a_hover_text_for_each_value() -> None:
    curve = Curve("a <b>", [Point(0, 0.25, 0.1, 0.4), Point(1, 0.5, 0.3, 0.7)], dots=True)
    root = ET.fromstring(line_chart([curve], label='say "hi" & <go>'))  # noqa: S314 - our own
    titles = [element.text for element in root.iter("title")]
    assert titles == [
        "a <b>: 0.25 at iteration 0 [0.1, 0.4]",
        "a <b>: 0.5 at iteration 1 [0.3, 0.7]",
    ]
    assert len(list(root.iter("polygon"))) == 1


def test_larger_values_are_drawn_higher_and_later_ones_further_right() -> None:
    root = ET.fromstring(line_chart([Curve("a", [Point(0, 1.0), Point(5, 2.0)])], label="a"))  # noqa: S314
    circles = [(float(item.attrib["cx"]), float(item.attrib["cy"])) for item in root.iter("circle")]
    assert circles[0][0] < circles[1][0]
    assert circles[0][1] > circles[1][1]


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_a_flat_curve_is_drawn(value: float) -> None:
    assert "nan" not in line_chart([Curve("a", [Point(0, value)])], label="a")
