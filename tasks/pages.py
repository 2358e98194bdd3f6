"""Self-contained HTML pages from templates: no server, no network, text of models escaped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, page: Mapping[str, Any]) -> str:
    """A page as HTML.

    Args:
        template: File name in `tasks/templates`.
        page: What the template shows, as `page`.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template(template).render(page=page)


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested values as sorted pairs of a name and a value, for a table."""
    flat: list[tuple[str, Any]] = []
    for name, value in sorted(values.items()):
        nested = isinstance(value, Mapping)
        flat += flatten(value, f"{prefix}{name} ") if nested else [(f"{prefix}{name}", value)]
    return flat
