"""A stage: what its address depends on, when it runs, and what a kill or damage leaves."""

import json
from pathlib import Path

import pytest
from prefect import flow
from pydantic import BaseModel

import tasks.stage
from tasks.lanes import Lanes
from tasks.stage import Job, Record, Runtime, Stage, stage
from tasks.store import Reference, Store

pytestmark = pytest.mark.server


class Settings(BaseModel):
    text: str = "a"


def body(job: Job[Settings]) -> None:
    """Writes its text and its input."""
    given = [path.read_text() for path in job.inputs.values()]
    job.output("text", suffix=".txt").write_text("".join([job.settings.text, *given]))
    job.metrics = {"demo/characters": float(len(job.settings.text))}


def failing(job: Job[Settings]) -> None:
    """Writes half of its output and fails."""
    job.output("text", suffix=".txt").write_text("half")
    raise ValueError("the disk is on fire")


DEMO: Stage[Settings] = stage("demo", version=1)(body)


@pytest.fixture
def runtime(tmp_path: Path, server: str) -> Runtime:
    del server
    return Runtime(store=Store(tmp_path / "store"), lanes=Lanes())


def call(
    runtime: Runtime,
    chosen: Stage[Settings] = DEMO,
    *,
    settings: Settings | None = None,
    inputs: dict[str, Reference] | None = None,
    seed: int = 0,
) -> Record:
    @flow(name="demo")
    def run() -> dict:
        record = chosen(
            runtime,
            settings=settings or Settings(),
            inputs=inputs or {},
            seed=seed,
            label="demo 0",
        )
        return record.model_dump()

    return Record.model_validate(run())


def address(
    chosen: Stage[Settings] = DEMO,
    *,
    settings: Settings | None = None,
    seed: int = 0,
    **inputs: str,
) -> str:
    references = {name: Reference(digest=digest) for name, digest in inputs.items()}
    return chosen.address(settings=settings or Settings(), inputs=references, seed=seed)


def test_the_address_names_everything_that_determines_the_outputs() -> None:
    others = [
        address(settings=Settings(text="b")),
        address(seed=1),
        address(policy="00"),
        address(policy="01"),
        address(trajectories="00"),
        address(stage("demo", version=2)(body)),
        address(stage("other", version=1)(body)),
    ]
    assert len({address(), *others}) == 1 + len(others)
    assert address(policy="00", trajectories="01") == address(trajectories="01", policy="00")


def test_a_changed_line_of_code_gives_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    before = address()
    monkeypatch.setattr(tasks.stage, "code_digest", lambda module: f"changed {module}")
    assert address() != before


def test_a_stage_runs_once_and_is_then_reused(runtime: Runtime) -> None:
    first, again = call(runtime), call(runtime)
    assert runtime.executed == ["demo 0"]
    assert runtime.reused == ["demo 0"]
    assert again == first
    assert runtime.store.verified(first.outputs["text"]).read_text() == "a"
    assert first.metrics == {"demo/characters": 1.0}


def test_inputs_reach_the_body_as_verified_files(runtime: Runtime) -> None:
    first = call(runtime)
    second = call(runtime, settings=Settings(text="b"), inputs={"text": first.outputs["text"]})
    assert runtime.store.verified(second.outputs["text"]).read_text() == "ba"


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_I8_a_damaged_output_is_found_and_made_again(runtime: Runtime, damage: str) -> None:
    path = runtime.store.path(call(runtime).outputs["text"])
    if damage == "missing":
        path.unlink()
    else:
        path.write_text("" if damage == "cut" else "b")
    call(Runtime(store := Store(runtime.store.root), runtime.lanes))
    assert path.read_text() == "a"
    assert store.read_record(address()) is not None


def test_what_the_store_lost_runs_again_although_the_server_remembers(runtime: Runtime) -> None:
    record = call(runtime)
    runtime.store.record_path(record.address).unlink()
    call(runtime)
    assert runtime.executed == ["demo 0", "demo 0"]


def test_what_the_store_has_is_reused_although_the_server_forgot(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call(runtime)
    monkeypatch.setenv("PREFECT_RESULTS_LOCAL_STORAGE_PATH", str(tmp_path / "elsewhere"))
    call(runtime)
    assert runtime.executed == ["demo 0"]


def test_a_body_that_fails_leaves_no_record_and_no_scratch(runtime: Runtime) -> None:
    chosen: Stage[Settings] = stage("failing", version=1)(failing)
    with pytest.raises(ValueError, match="on fire"):
        call(runtime, chosen)
    assert runtime.store.read_record(address(chosen)) is None
    assert list((runtime.store.root / "tmp").iterdir()) == []
    assert runtime.executed == []


def test_P3_the_record_is_written_after_the_outputs_are_stored(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    put, write = Store.put, Store.write_record

    def noted_put(self: Store, path: Path) -> Reference:
        order.append("output")
        return put(self, path)

    def noted_write(self: Store, key: str, record: dict) -> None:
        order.append("record")
        outputs = [Reference.model_validate(item) for item in record["outputs"].values()]
        assert all(self.path(item).exists() for item in outputs)
        write(self, key, record)

    monkeypatch.setattr(Store, "put", noted_put)
    monkeypatch.setattr(Store, "write_record", noted_write)
    call(runtime)
    assert order == ["output", "record"]


def test_E10_prefect_gets_addresses_and_keeps_addresses(runtime: Runtime, tmp_path: Path) -> None:
    record = call(runtime)
    results = Path(__import__("os").environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"])
    kept = [path for path in results.rglob("*") if record.address in path.name]
    assert kept
    assert json.loads(json.loads(kept[0].read_text())["result"]) == record.address
