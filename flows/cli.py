"""The `starpo` command: thin; each command composes settings and calls one function.

Heavy packages are imported inside the commands, so that `--help` and refusals are immediate.
"""
# ruff: noqa: PLC0415 - see above

import gc as interpreter_gc
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flows import defaults
from flows.errors import FlowsError

if TYPE_CHECKING:
    from tasks.store import Store

defaults.apply()

app = typer.Typer(
    name="starpo",
    help="Trains, evaluates and diagnoses LLM agents by multi-turn reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

FLOW_MODULES = {
    "train": "flows.starpo",
    "evaluate": "flows.starpo",
    "sweep": "flows.sweep_run",
}

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings by dotted name, e.g. env.tag=Bandit.",
        show_default=False,
    ),
]
StoreFolder = Annotated[
    Path | None,
    typer.Option(
        "--store", help="Folder of the store. [default: .starpo/store]", show_default=False
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Processes that compute; changes no result.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command()
def train(
    overrides: Overrides = None,
    *,
    scale: Annotated[str, typer.Option(help="Scale of params.yaml.")] = "nano",
    store: StoreFolder = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Trains one experiment; the same command again resumes it.

    Example: starpo train env.tag=FrozenLake train.iterations=40 seed=1
    """
    from flows.experiment import load_experiment, parse_overrides, parse_scale

    values, size = parse_overrides(overrides or []), parse_scale(scale)
    load_experiment(values, scale=size)  # refuse bad settings before anything starts
    from flows.summary import Summary, print_summary

    result = _run_flow("train", overrides=values, scale=size, store=store, workers=workers)
    if as_json:
        _print_json(result)
    else:
        print_summary(Summary.model_validate(result), console=console)


@app.command()
def evaluate(
    policy: Annotated[Path, typer.Argument(help="Folder of a policy in Hugging Face form.")],
    overrides: Overrides = None,
    *,
    store: StoreFolder = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Plays held-out episodes with a policy; its own environment and prompts unless overridden.

    Example: starpo evaluate checkpoints/quick-start evaluate.instances=512
    """
    from flows.evaluation import print_evaluation
    from flows.experiment import parse_overrides

    values = parse_overrides(overrides or [])
    result = _run_flow(
        "evaluate", policy=str(policy.absolute()), overrides=values, store=store, workers=workers
    )
    if as_json:
        _print_json(result)
    else:
        print_evaluation(result, console=console)


@app.command()
def show(
    shard: Annotated[Path, typer.Argument(help="A trajectory shard.")],
    *,
    episode: Annotated[
        str | None, typer.Option(help="Number or id of an episode.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Lists the episodes of a shard, or shows one turn by turn, sampled text coloured.

    Example: starpo show .starpo/store/objects/ab/abcd….parquet --episode 3
    """
    from tasks.shards import Kind, read_shard
    from tasks.show import episode_json, episode_view, episodes_json, episodes_table

    loaded = read_shard(shard, kind=Kind.TRAJECTORIES)
    if episode is None:
        if as_json:
            _print_json(episodes_json(loaded))
        else:
            console.print(episodes_table(loaded))
    elif as_json:
        _print_json(episode_json(loaded, episode))
    else:
        console.print(episode_view(loaded, episode))


@app.command()
def status(*, store: StoreFolder = None, as_json: AsJson = False) -> None:
    """Shows the runs, the store and the servers of this checkout.

    Example: starpo status --json
    """
    from flows.status import print_status, read_status

    found = read_status(defaults.HOME, store=store)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        print_status(found, console=console)


@app.command()
def doctor(*, as_json: AsJson = False) -> None:
    """Checks packages, servers, disk, device and offline data; says how to mend each.

    Example: starpo doctor
    """
    from flows.doctor import diagnose, findings_json, findings_table, healthy

    findings = diagnose(defaults.HOME)
    if as_json:
        _print_json(findings_json(findings))
    else:
        console.print(findings_table(findings))
    raise typer.Exit(0 if healthy(findings) else 1)


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="A sweep of params.yaml.")],
    *,
    scale: Annotated[str, typer.Option(help="Scale of params.yaml.")] = "nano",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds.", show_default=False)
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(help="Only these arms, separated by commas.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two seeds: a first look.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    place: Annotated[
        str, typer.Option(help="Where arms run: here (in turn), processes or ray.")
    ] = "here",
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Arms at a time. [default: all cores]", show_default=False),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster's address.", show_default=False)
    ] = None,
    store: StoreFolder = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Runs a named study: every arm with every seed, then intervals and a verdict.

    Example: starpo sweep rollout_frequency --seeds 3 --dry-run
    """
    from flows.experiment import parse_scale
    from flows.sweep import chosen_arms, load_sweep

    size = parse_scale(scale)
    loaded = load_sweep(name, scale=size)
    seeds = 2 if quick and seeds is None else seeds
    names = [arm.strip() for arm in arms.split(",")] if arms else None
    chosen_arms(loaded, names)
    if dry_run:
        from flows.sweep_run import plan, print_plan

        planned = plan(loaded, seeds=seeds, arms=names)
        if as_json:
            _print_json([run.model_dump() for run in planned])
        else:
            print_plan(loaded, planned, console=console)
        return
    from flows.arms import parse_place
    from flows.sweep_report import print_result
    from flows.sweep_result import SweepResult

    result = _run_flow(
        "sweep",
        sweep=name,
        scale=size,
        seeds=seeds,
        arms=names,
        place=parse_place(place),
        parallel=parallel,
        ray_address=ray_address,
        store=store,
        workers=workers,
    )
    if as_json:
        _print_json(result)
    else:
        kept = {key: value for key, value in result.items() if not key.startswith("num_")}
        print_result(SweepResult.model_validate(kept), console=console)


@app.command()
def findings(
    *,
    write: Annotated[
        bool, typer.Option("--write", help="Also write the table to results/README.md.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Lists the published findings and what became of each in this checkout's sweeps.

    Example: starpo findings
    """
    from flows.findings import judged_findings, print_findings, write_findings

    rows = judged_findings(defaults.HOME / "results")
    if write:
        write_findings(rows, defaults.HOME / "results")
    if as_json:
        _print_json([row.model_dump(mode="json") for row in rows])
    else:
        print_findings(rows, console=console)


@app.command()
def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SWEEP]...", help="Which. [default: all with results]"),
    ] = None,
) -> None:
    """Writes the pages, tables and figures of finished sweeps from their results.

    Example: starpo report rollout_frequency
    """
    from flows.sweep import sweep_names
    from flows.sweep_report import report_path, write_report
    from flows.sweep_result import load_result, result_path

    folder = defaults.HOME / "results"
    for name in names or [name for name in sweep_names() if result_path(folder, name).exists()]:
        write_report(load_result(folder, name), folder)
        console.print(str(report_path(folder, name)), soft_wrap=True)


@app.command()
def explain(
    file: Annotated[
        Path, typer.Argument(help="A figure, table, checkpoint, shard or any file of the store.")
    ],
    *,
    store: StoreFolder = None,
    as_json: AsJson = False,
) -> None:
    """Prints what a file was made from, to the commit; names what was changed or is missing.

    Example: starpo explain results/baseline.svg
    """
    from flows.explain import explain as trace
    from flows.explain import print_explanation

    found = trace(file, root=defaults.HOME, store=_store(store))
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        print_explanation(found, console=console)


@app.command()
def rebuild(
    file: Annotated[
        Path, typer.Argument(help="A figure, table, checkpoint, shard or any file of the store.")
    ],
    *,
    store: StoreFolder = None,
    workers: Workers = None,
) -> None:
    """Makes a file again from what it was made from; bit-equal on the same kind of machine.

    Example: starpo rebuild checkpoints/baseline/Bandit_ppo/seed-0
    """
    from flows.remake import is_table, remake

    if is_table(file, root=defaults.HOME):
        from flows.explain import sweep_of
        from flows.sweep_result import load_result

        known = load_result(defaults.HOME / "results", sweep_of(file))
        arms = {arm: sorted(runs) for arm, runs in known.runs.items()}
        result = _run_flow(
            "sweep",
            sweep=known.name,
            scale=known.scale,
            seeds=max(len(seeds) for seeds in arms.values()),
            arms=list(arms),
            store=store,
            workers=workers,
        )
        console.print(f"{result['num_executed']} stages executed, {result['num_reused']} reused")
        return
    ran = remake(file, root=defaults.HOME, store=_store(store), workers=workers or 2)
    console.print(f"made again: {file}", soft_wrap=True)
    console.print(f"{len(ran)} stages executed" if ran else "no stage had to run")


@app.command()
def nightly(
    *,
    date: Annotated[
        str | None, typer.Option(help="The night. [default: today]", show_default=False)
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="What moved is meant: start a new history.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measures the nightly suite and compares it with the nights before; fails on a regression.

    Example: starpo nightly
    """
    from flows.nightly import Night, Verdict, print_night
    from flows.nightly import nightly as flow
    from flows.server import prefect_server

    with prefect_server(defaults.HOME):
        state: Any = flow(date=date, accept=accept, return_state=True)
        result = Night.model_validate(state.result(raise_on_failure=False))
    if as_json:
        _print_json(result.model_dump(mode="json"))
    elif result.rows:
        print_night(result, console=console)
    else:
        console.print(f"{result.date}: skipped, {result.verdict}")
    raise typer.Exit(1 if result.verdict is Verdict.REGRESSION else 0)


@app.command()
def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreFolder = None,
    as_json: AsJson = False,
) -> None:
    """Removes from the store what no run, result or MLflow run refers to.

    Example: starpo gc --dry-run
    """
    from flows.gc import collect_garbage

    found = collect_garbage(defaults.HOME, _store(store), dry_run=dry_run)
    if as_json:
        _print_json(found.model_dump(mode="json"))
        return
    verb = "would remove" if dry_run else "removed"
    console.print(
        f"{verb} {len(found.runs)} runs, {found.num_records} stage records and {found.num_objects} "
        f"objects ({found.num_bytes / 1024**2:.0f} MiB); {found.kept_runs} runs are kept"
    )


Asked = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN | SHARD...] [KEY=VALUE,...]...",
        help="A run (the beginning of its digest, or `last`) or trajectory shards, and settings; "
        "commas make a grid.",
        show_default=False,
    ),
]


@app.command("filter")
def ask_filter(asked: Asked = None, *, store: StoreFolder = None, as_json: AsJson = False) -> None:
    """Says what other filters would have kept of stored rollouts; samples nothing.

    Example: starpo filter last strategy=top_p value=0.5,0.7,0.9
    """
    from flows.asking import answer_filter, print_answers

    answers = answer_filter(defaults.HOME, _store(store), asked or [])
    if as_json:
        _print_json(answers)
    else:
        print_answers(answers, title="kept groups and what they teach", console=console)


@app.command("advantage")
def ask_advantage(
    asked: Asked = None, *, store: StoreFolder = None, as_json: AsJson = False
) -> None:
    """Says what other estimators would have given to stored rollouts; samples nothing.

    Example: starpo advantage last estimator=grpo,rloo,gigpo
    """
    from flows.asking import answer_advantage, print_answers

    answers = answer_advantage(defaults.HOME, _store(store), asked or [])
    if as_json:
        _print_json(answers)
    else:
        print_answers(answers, title="advantages of sampled tokens", console=console)


@app.command()
def audit(
    run: Annotated[
        str, typer.Argument(help="A run: the beginning of its digest, or `last`.")
    ] = "last",
    *,
    max_gap: Annotated[
        float | None,
        typer.Option(help="Allowed log-prob gap. [default: the run's own]", show_default=False),
    ] = None,
    store: StoreFolder = None,
    as_json: AsJson = False,
) -> None:
    """Asks a run's shards whether it learned from exactly what was sampled; fails if not.

    Example: starpo audit last --max-gap 0.001
    """
    from dataclasses import asdict

    from flows.asking import audit_run, print_audit

    found = audit_run(defaults.HOME, _store(store), run, max_gap=max_gap)
    if as_json:
        _print_json(asdict(found))
    else:
        print_audit(found, console=console)
    raise typer.Exit(0 if found.is_clean else 1)


@app.command()
def up(
    services: Annotated[
        list[str] | None,
        typer.Argument(metavar="[prefect] [mlflow]", help="Which. [default: both]"),
    ] = None,
) -> None:
    """Runs Prefect (server and worker) and MLflow's interface on loopback until Ctrl-C.

    Example: starpo up mlflow
    """
    from flows.services import parse_services
    from flows.services import up as run_services

    run_services(defaults.HOME, services=parse_services(services or []), console=console)


def main() -> None:
    """Entry point: expected errors are one message, not a traceback."""
    from envs.errors import EnvsError
    from models.errors import ModelsError
    from tasks.errors import TasksError

    # Hundreds of thousands of objects of libraries are made once and live to the end: looking for
    # rubbish among them, while importing and again at exit, costs two seconds.
    interpreter_gc.set_threshold(100_000, 50, 50)
    try:
        app()
    except (FlowsError, TasksError, EnvsError, ModelsError) as error:
        errors = Console(stderr=True, highlight=False)
        errors.print("error: ", style="bold red", end="")
        errors.print(str(error), markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command again resumes")
        sys.exit(130)
    finally:
        interpreter_gc.freeze()


def _run_flow(name: str, **parameters: Any) -> dict[str, Any]:
    """Runs a flow of the project with a Prefect server behind it."""
    from importlib import import_module

    from flows.server import await_task_runs, ended_task_runs, prefect_server

    with prefect_server(defaults.HOME) as api:
        flow = getattr(import_module(FLOW_MODULES[name]), name)
        before = ended_task_runs(api.url)
        parameters["store"] = str(parameters["store"]) if parameters["store"] else None
        result: dict[str, Any] = flow(**parameters)
        if api.is_temporary:
            every_stage = result["num_executed"] + result["num_reused"]
            await_task_runs(api.url, before + result.get("num_task_runs", every_stage))
    return result


def _store(folder: Path | None) -> "Store":
    from tasks.store import Store

    return Store(folder or defaults.STORE)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, sort_keys=True) + "\n")
