"""Report: one self-contained page about a run."""

from pydantic import BaseModel, ConfigDict

from tasks.stage import Job, stage


class ReportSettings(BaseModel):
    """What the page shows besides the shards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    experiment: dict[str, str | int | float | bool | None | list[str]]
    history: dict[int, dict[str, float]]
    ending: str
    reason: str


@stage("report", version=1)
def report(job: Job[ReportSettings]) -> None:
    """Writes the page."""
    job.output("report", suffix=".html").write_text(f"<h1>{job.settings.name}</h1>")
