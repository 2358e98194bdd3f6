"""A stage: a function from verified files to verified files, run as a cached Prefect task.

The address of a run of a stage is the digest of its name, version, code, settings, inputs and seed.
Prefect's result cache is keyed by it; the outputs lie in the content-addressed store and are
verified on a hit. A stage body gets a `Job` and writes into the job's folder; nothing else.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.context import TaskRunContext
from pydantic import BaseModel, ConfigDict

from envs.entry_points import is_entry_point
from tasks.code import code_digest
from tasks.digest import digest_json
from tasks.lanes import Lanes
from tasks.provenance import provenance
from tasks.shards import Kind, write_shard
from tasks.store import Reference, Store

Settings = TypeVar("Settings", bound=BaseModel)


class Record(BaseModel):
    """What a run of a stage produced: small, JSON, written after the outputs are whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    stage: str
    version: int
    label: str
    code: str
    settings: dict[str, Any]
    inputs: dict[str, Reference]
    seed: int
    outputs: dict[str, Reference]
    metrics: dict[str, float]
    wall_s: float
    provenance: dict[str, Any]


@dataclass
class Runtime:
    """What stages run with: where files go and who computes. Not part of any address.

    Attributes:
        store: The content-addressed store.
        lanes: Executes lane payloads in this process or in workers.
        executed: Labels of the stages that ran, in order.
        reused: Labels of the stages whose stored outputs were used.
        calls: Label and address of every stage, in order.
        wall_s: Seconds that executed stages took, by stage.
        publish: Whether stages show their metrics as a table in Prefect; costs some 10 ms each.
    """

    store: Store
    lanes: Lanes
    executed: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    wall_s: dict[str, float] = field(default_factory=dict)
    publish: bool = True


@dataclass
class Job(Generic[Settings]):
    """One run of a stage, as its body sees it.

    Attributes:
        settings: The stage's validated settings.
        seed: The seed of this run.
        inputs: Verified path of each input.
        digests: Digest of each input.
        folder: Scratch folder for outputs; they are moved to the store at the end.
        lanes: Executes lane payloads.
        metrics: Numbers to track; filled by the body.
    """

    settings: Settings
    seed: int
    inputs: Mapping[str, Path]
    digests: Mapping[str, str]
    folder: Path
    lanes: Lanes
    description: Mapping[str, Any]
    outputs: dict[str, Path] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def write_shard(self, name: str, table: pa.Table, *, kind: Kind, **facts: Any) -> None:
        """Writes a table as the output `name`, with the stage's provenance in its metadata."""
        path = self.folder / f"{name}.parquet"
        write_shard(path, table, kind=kind, metadata={**self.description, **facts})
        self.outputs[name] = path

    def output(self, name: str, *, suffix: str = "") -> Path:
        """Declares the output `name` and returns the path to write it to."""
        self.outputs[name] = self.folder / f"{name}{suffix}"
        return self.outputs[name]


class Stage(Generic[Settings]):
    """A stage that flows can call; made by the `stage` decorator.

    Attributes:
        fn: The undecorated body.
    """

    def __init__(self, fn: Callable[[Job[Settings]], None], *, name: str, version: int) -> None:
        self.fn, self.name, self.version = fn, name, version
        self._task = task(
            name=name,
            version=str(version),
            description=(fn.__doc__ or "").strip(),
            task_run_name="{label}",
            cache_key_fn=_address,
            persist_result=True,
            result_serializer="json",
        )(self._run)
        self._fresh_task = self._task.with_options(refresh_cache=True)

    def address(self, *, settings: Settings, inputs: Mapping[str, Reference], seed: int) -> str:
        """Content address of a run of this stage."""
        return digest_json(
            {
                "stage": self.name,
                "version": self.version,
                "code": _code(self.fn.__module__, settings),
                "settings": settings.model_dump(mode="json"),
                "inputs": {name: reference.digest for name, reference in inputs.items()},
                "seed": seed,
            }
        )

    def __call__(
        self,
        runtime: Runtime,
        *,
        settings: Settings,
        inputs: Mapping[str, Reference],
        seed: int,
        label: str,
    ) -> Record:
        """Runs the stage, or reuses its stored outputs when they are whole."""
        address = self.address(settings=settings, inputs=inputs, seed=seed)
        whole = _whole_record(runtime.store, address)
        run = self._task if whole else self._fresh_task
        call = _Call(settings=settings, inputs=inputs, seed=seed, runtime=runtime)
        run(address=address, label=label, call=call)
        record = whole or Record.model_validate(runtime.store.read_record(address))
        runtime.calls.append((label, address))
        (runtime.reused if whole else runtime.executed).append(label)
        if not whole:
            wall_s = runtime.wall_s.get(self.name, 0.0) + record.wall_s
            runtime.wall_s[self.name] = wall_s
        return record

    def _run(self, address: str, label: str, call: "_Call[Settings]") -> str:
        """The task: reuse, or compute into a scratch folder, store, and write the record last.

        Returns:
            The address, at which the store has the record.
        """
        store = call.runtime.store
        if _whole_record(store, address):  # known to the store but not to this Prefect server
            return address
        started = time.perf_counter()
        facts: dict[str, Any] = {
            "stage": self.name,
            "version": self.version,
            "code": _code(self.fn.__module__, call.settings),
            "settings": call.settings.model_dump(mode="json"),
            "inputs": {name: reference.model_dump() for name, reference in call.inputs.items()},
            "seed": call.seed,
            "provenance": provenance(),
        }
        with store.workspace() as folder:
            job = Job(
                settings=call.settings,
                seed=call.seed,
                inputs={name: store.verified(item) for name, item in call.inputs.items()},
                digests={name: item.digest for name, item in call.inputs.items()},
                folder=folder,
                lanes=call.runtime.lanes,
                description=facts,
            )
            self.fn(job)
            outputs = {name: store.put(path) for name, path in job.outputs.items()}
        record = Record(
            address=address,
            label=label,
            outputs=outputs,
            metrics=job.metrics,
            wall_s=time.perf_counter() - started,
            **facts,
        )
        store.write_record(address, record.model_dump(mode="json"))
        if job.metrics and call.runtime.publish:
            table = [{"metric": name, "value": value} for name, value in job.metrics.items()]
            create_table_artifact(key=self.name, table=table, description=label)
        return address


class _Call(Generic[Settings]):
    """The arguments of a task run; never serialised, never hashed.

    No dataclass: Prefect searches those, and everything in them, for futures on every call.
    """

    def __init__(
        self, settings: Settings, inputs: Mapping[str, Reference], seed: int, runtime: Runtime
    ) -> None:
        self.settings, self.inputs, self.seed, self.runtime = settings, inputs, seed, runtime


def stage(
    name: str, *, version: int
) -> Callable[[Callable[[Job[Settings]], None]], Stage[Settings]]:
    """Makes a function of a `Job` a stage.

    Args:
        name: The stage's name, also its Prefect task's.
        version: Raised when the meaning of its outputs changes without a change of its code.
    """

    def decorate(fn: Callable[[Job[Settings]], None]) -> Stage[Settings]:
        return Stage(fn, name=name, version=version)

    return decorate


def _code(module: str, settings: BaseModel) -> str:
    """Digest of a stage's code, and of the user's modules that its settings name."""
    named = sorted(set(_entry_points(settings.model_dump(mode="json"))))
    if not named:
        return code_digest(module)
    modules = [module, *(name.partition(":")[0] for name in named)]
    return digest_json([code_digest(name) for name in modules])


def _entry_points(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _entry_points(item)
    elif isinstance(value, str) and is_entry_point(value):
        yield value


def _address(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    del context
    address: str = parameters["address"]
    return address


def _whole_record(store: Store, address: str) -> Record | None:
    """The record at an address, if all its outputs are whole."""
    found = store.read_record(address)
    if found is None:
        return None
    record = Record.model_validate(found)
    return record if all(store.is_intact(item) for item in record.outputs.values()) else None
