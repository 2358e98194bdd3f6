"""A stage: a function from verified files to verified files, run as a cached Prefect task.

The address of a run of a stage is the digest of its name, version, code, settings, inputs and seed.
Prefect's result cache is keyed by it; the outputs lie in the content-addressed store and are
verified on a hit. A stage body gets a `Job` and writes into the job's folder; nothing else.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_type_hints

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
        show_reused: Whether a reused stage is a task run in Prefect too, in the state Cached; costs
            some 50 ms each.
        timeout_s: Seconds that a stage may take; None for any.
        restore: Makes an input again that was collected (`tasks.rebuild`).
    """

    store: Store
    lanes: Lanes
    executed: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    wall_s: dict[str, float] = field(default_factory=dict)
    publish: bool = True
    show_reused: bool = True
    timeout_s: float | None = None
    restore: "Callable[[Runtime, Reference], None] | None" = None


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
        settings_class: Class of its settings, from the body's signature.
    """

    def __init__(self, fn: Callable[[Job[Settings]], None], *, name: str, version: int) -> None:
        self.fn, self.name, self.version = fn, name, version
        self.settings_class: type[Settings] = get_args(get_type_hints(fn)["job"])[0]
        self._task = task(
            name=name,
            version=str(version),
            description=(fn.__doc__ or "").strip(),
            task_run_name="{label}",
            cache_key_fn=_address,
            persist_result=True,
            result_serializer="json",
        )(self._run)

    def address(self, *, settings: Settings, inputs: Mapping[str, Reference], seed: int) -> str:
        """Content address of a run of this stage."""
        values = settings.model_dump(mode="json")
        return digest_json(
            {
                "stage": self.name,
                "version": self.version,
                "code": _code(self.fn.__module__, values),
                "settings": values,
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
        known = _known_record(runtime.store, address)
        call = _Call(settings=settings, inputs=inputs, seed=seed, runtime=runtime)
        if known is None or runtime.show_reused:
            run = self._task.with_options(
                refresh_cache=known is None, timeout_seconds=runtime.timeout_s
            )
            run(address=address, label=label, call=call)
        record = known or Record.model_validate(runtime.store.read_record(address))
        runtime.calls.append((label, address))
        (runtime.executed if call.is_executed else runtime.reused).append(label)
        if call.is_executed:
            wall_s = runtime.wall_s.get(self.name, 0.0) + record.wall_s
            runtime.wall_s[self.name] = wall_s
        return record

    def make(
        self,
        runtime: Runtime,
        *,
        settings: Settings,
        inputs: Mapping[str, Reference],
        seed: int,
        label: str,
        origin: Mapping[str, Any] | None = None,
    ) -> Record:
        """Computes into a scratch folder and stores the outputs; writes no record.

        Args:
            runtime: Store and lanes.
            settings: The stage's settings.
            inputs: Its inputs, all of them in the store.
            seed: Its seed.
            label: Shown to people.
            origin: Provenance that the outputs name; this process's own when not given.

        Raises:
            MissingObjectError: An input is not in the store.
        """
        store = runtime.store
        started = time.perf_counter()
        values = settings.model_dump(mode="json")
        facts: dict[str, Any] = {
            "stage": self.name,
            "version": self.version,
            "code": _code(self.fn.__module__, values),
            "settings": values,
            "inputs": {name: reference.model_dump() for name, reference in inputs.items()},
            "seed": seed,
            "provenance": origin or provenance(),
        }
        with store.workspace() as folder:
            job = Job(
                settings=settings,
                seed=seed,
                inputs={name: store.verified(item) for name, item in inputs.items()},
                digests={name: item.digest for name, item in inputs.items()},
                folder=folder,
                lanes=runtime.lanes,
                description=facts,
            )
            self.fn(job)
            outputs = {name: store.put(path) for name, path in job.outputs.items()}
        return Record(
            address=self.address(settings=settings, inputs=inputs, seed=seed),
            label=label,
            outputs=outputs,
            metrics=job.metrics,
            wall_s=time.perf_counter() - started,
            **facts,
        )

    def _run(self, address: str, label: str, call: "_Call[Settings]") -> str:
        """The task: reuse, or make the outputs and write the record last.

        Returns:
            The address, at which the store has the record.
        """
        runtime, store = call.runtime, call.runtime.store
        if _known_record(store, address):  # known to the store but not to this Prefect server
            return address
        for reference in call.inputs.values():
            if runtime.restore is not None and store.is_collected(reference):
                runtime.restore(runtime, reference)
        with store.making(address):
            if _known_record(store, address):  # made by a process beside this one meanwhile
                return address
            record = self.make(
                runtime, settings=call.settings, inputs=call.inputs, seed=call.seed, label=label
            )
            store.write_record(address, record.model_dump(mode="json"))
            call.is_executed = True
        if record.metrics and runtime.publish:
            table = [{"metric": name, "value": value} for name, value in record.metrics.items()]
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
        self.is_executed = False


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


def _code(module: str, settings: Mapping[str, Any]) -> str:
    """Digest of a stage's code, and of the user's modules that its settings name."""
    named = sorted(set(_entry_points(settings)))
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


def _known_record(store: Store, address: str) -> Record | None:
    """The record at an address, if each of its outputs is whole or can be made again."""
    found = store.read_record(address)
    if found is None:
        return None
    record = Record.model_validate(found)
    return record if all(store.is_known(item) for item in record.outputs.values()) else None
