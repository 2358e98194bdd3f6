"""Episodes of a trajectory shard as a person reads them: said, sampled, and what came of it.

Sampled text is coloured; everything else is what the environment or the template said.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tasks.errors import SettingsError
from tasks.shards import Shard

LISTED = ("tag", "stratum", "status", "success", "return", "penalty")
SAMPLED_STYLE = "bold green"
NUMBER_OF_EPISODES_SHOWN = 200


def episodes_json(shard: Shard) -> list[dict[str, Any]]:
    """One entry per row of the shard, without its turns."""
    columns = shard.table.select(["episode", *LISTED, "valid"]).to_pylist()
    sampled = shard.table["sampled"].to_pylist()
    return [
        {
            "number": number,
            "episode": row["episode"],
            **{name: row[name] for name in LISTED},
            "turns": len(row["valid"]),
            "sampled_tokens": sum(mask),
        }
        for number, (row, mask) in enumerate(zip(columns, sampled, strict=True))
    ]


def episodes_table(shard: Shard) -> Table:
    """The shard's episodes, a line each."""
    rows = episodes_json(shard)
    shown = rows[:NUMBER_OF_EPISODES_SHOWN]
    rest = "" if len(shown) == len(rows) else f", the first {len(shown)}"
    table = Table(title=f"{len(rows)} episodes{rest}", title_justify="left")
    for name in ("number", "tag", "kind", "status", "success", "return", "turns", "sampled tokens"):
        table.add_column(name)
    for row in shown:
        table.add_row(
            str(row["number"]),
            row["tag"],
            row["stratum"],
            row["status"],
            "yes" if row["success"] else "no",
            f"{row['return'] + row['penalty']:.2f}",
            str(row["turns"]),
            str(row["sampled_tokens"]),
        )
    return table


def episode_json(shard: Shard, episode: str) -> dict[str, Any]:
    """One row of the shard, everything in it.

    Args:
        shard: A trajectory shard.
        episode: Its number in the shard, or its id.
    """
    row: dict[str, Any] = shard.table.slice(find_episode(shard, episode), 1).to_pylist()[0]
    row["metrics"] = dict(row["metrics"])
    return row


def episode_view(shard: Shard, episode: str) -> RenderableType:
    """One episode turn by turn.

    Args:
        shard: A trajectory shard.
        episode: Its number in the shard, or its id.
    """
    row = episode_json(shard, episode)
    parts: list[RenderableType] = [_headline(row)]
    for index, prompt in enumerate(row["prompts"][: len(row["replies"])]):
        body = Text(prompt)
        body.append("\n\n")
        body.append(row["replies"][index], style=SAMPLED_STYLE)
        body.append(f"  [{row['stop_reasons'][index]}]\n\n", style="dim")
        actions = ", ".join(row["actions"][index]) or "none"
        body.append(f"actions {actions}   reward {row['rewards'][index]:+.2f}")
        if row["penalties"][index]:
            body.append(f"   penalty {row['penalties'][index]:+.2f}", style="red")
        if not row["valid"][index]:
            body.append("   invalid", style="red")
        parts.append(Panel(body, title=f"turn {index + 1}", title_align="left"))
    if row["error"]:
        parts.append(Text(row["error"], style="red"))
    return Group(*parts)


def find_episode(shard: Shard, episode: str) -> int:
    """Row of an episode given by number or id.

    Raises:
        SettingsError: There is none.
    """
    names: list[str] = shard.table["episode"].to_pylist()
    if episode in names:
        return names.index(episode)
    if episode.isdecimal() and int(episode) < len(names):
        return int(episode)
    raise SettingsError(
        f"no episode `{episode}` in this shard\n"
        f"hint: a number from 0 to {len(names) - 1}, or an id that the list shows with `--json`"
    )


def _headline(row: dict[str, Any]) -> Text:
    text = Text(row["episode"], style="bold")
    outcome = "success" if row["success"] else "no success"
    text.append(
        f"\n{row['tag']} {row['stratum']}   {row['status']}, {outcome}   "
        f"return {row['return']:+.2f}, penalty {row['penalty']:+.2f}   "
        f"policy version {row['policy_version']}, weights {row['weight_digest'][:12]}…\n",
        style="not bold",
    )
    text.append("sampled by the policy", style=SAMPLED_STYLE)
    text.append(", everything else was not", style="not bold")
    return text
