"""`explain`, `rebuild` and `gc` on a real sweep."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.checkpoints import find_checkpoint
from flows.defaults import ROOT
from flows.errors import ExperimentError
from flows.explain import Explanation, Kind, explain
from flows.gc import Collected, collect_garbage
from flows.remake import is_table, remake
from flows.sweep_report import report_path
from flows.sweep_result import load_result, result_path
from tasks.digest import digest_path
from tasks.errors import RebuildError, StoreBusyError
from tasks.lanes import Lanes
from tasks.lineage import FileState
from tasks.rebuild import all_records, rebuild
from tasks.runs import known_runs, read_run
from tasks.stage import Record, Runtime
from tasks.store import Reference, Store
from tasks.tracking import open_client

pytestmark = [pytest.mark.server, pytest.mark.slow]

CHECKPOINT = Path("checkpoints", "smoke", "two", "seed-1")


@pytest.fixture(scope="module")
def swept(
    tmp_path_factory: pytest.TempPathFactory, environment_of: Callable[[Path], dict[str, str]]
) -> Path:
    """A home in which the sweep `smoke` has ended."""
    home = tmp_path_factory.mktemp("swept")
    subprocess.run(
        [sys.executable, "-c", "from flows.cli import main; main()", "sweep", "smoke"],
        cwd=ROOT,
        env=environment_of(home),
        check=True,
    )
    return home


@pytest.fixture
def root(swept: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(swept, tmp_path / "home"))


def store_of(root: Path) -> Store:
    return Store(root / ".starpo" / "store")


def explained(root: Path, file: Path) -> Explanation:
    return explain(root / file, root=root, store=store_of(root))


def remade(root: Path, file: Path) -> list[str]:
    return remake(root / file, root=root, store=store_of(root), workers=1)


def collected(root: Path, *, dry_run: bool = False) -> Collected:
    return collect_garbage(root, store_of(root), dry_run=dry_run)


def last_shard(root: Path) -> Path:
    """Trajectories that the last update of a run learned from."""
    store = store_of(root)
    records = [item for item in all_records(store) if item.label == "rollout 0001"]
    return store.path(records[0].outputs["trajectories"])


def policy_of(root: Path, checkpoint: Path) -> Path:
    place = find_checkpoint(root / checkpoint, root=root)
    link = load_result(root / "results", place.sweep).runs[place.arm][place.seed]
    return store_of(root).path(Reference(digest=link.policy))


@pytest.mark.parametrize("kind", ["html", "md", "svg", "json", "parquet"])
def test_a_result_is_traced_to_every_stage_of_its_runs(swept: Path, kind: str) -> None:
    found = explained(swept, Path("results", f"smoke.{kind}"))
    assert found.kind is Kind.RESULT
    assert found.state is FileState.WHOLE
    assert found.problems == []
    assert {"command", "commit", "dirty", "packages", "machine"} <= set(found.facts)
    known = {address for run in known_runs(swept).values() for _, address in run.stages}
    assert known <= {link.address for link in found.chain}
    assert all(link.same_code for link in found.chain)


def test_a_chain_begins_with_what_was_needed_first(swept: Path) -> None:
    found = explained(swept, CHECKPOINT)
    assert found.kind is Kind.CHECKPOINT
    labels = [link.label for link in found.chain]
    assert labels[0].startswith("warmstart")
    assert labels[-1] == "update 0001"
    seen: set[str] = set()
    for link in found.chain:
        assert set(link.inputs.values()) <= seen
        seen |= {file.digest for file in link.outputs}


def test_a_copy_of_a_shard_is_known_by_its_bytes(swept: Path, tmp_path: Path) -> None:
    copy = tmp_path / "episodes.parquet"
    shutil.copy(last_shard(swept), copy)
    found = explain(copy, root=swept, store=store_of(swept))
    assert found.facts["stage"] == "rollout 0001"
    assert found.facts["settings"]["rollout"]["groups"] == 8


def test_a_file_that_nobody_made_is_refused(swept: Path, tmp_path: Path) -> None:
    (tmp_path / "other.parquet").write_bytes(b"other")
    with pytest.raises(ExperimentError, match="no stage of the store .* made .*\nhint: "):
        explain(tmp_path / "other.parquet", root=swept, store=store_of(swept))


@pytest.mark.parametrize("file", [Path("results", "smoke.svg"), CHECKPOINT])
def test_a_changed_or_missing_file_of_the_chain_is_named(root: Path, file: Path) -> None:
    shards = sorted(
        store_of(root).path(record.outputs["trajectories"])
        for record in all_records(store_of(root))
        if record.label == "rollout 0000"
    )
    for shard in shards:
        shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    assert any(
        f"rollout 0000: `{shard}` is changed" in explained(root, file).problems for shard in shards
    )
    for shard in shards:
        shard.unlink()
    assert any(
        f"rollout 0000: `{shard}` is missing" in explained(root, file).problems for shard in shards
    )


@pytest.mark.parametrize("kind", ["html", "md", "svg"])
def test_an_edited_page_is_noticed_and_made_again(root: Path, kind: str) -> None:
    page = root / "results" / f"smoke.{kind}"
    right = page.read_bytes()
    page.write_text(page.read_text().replace("none", "nine"))
    assert explained(root, page.relative_to(root)).state is FileState.CHANGED
    assert remade(root, page.relative_to(root)) == []
    assert page.read_bytes() == right


def test_a_table_is_made_from_runs_and_not_from_itself(root: Path) -> None:
    assert is_table(result_path(root / "results", "smoke"), root=root)
    assert not is_table(report_path(root / "results", "smoke"), root=root)


def test_a_lost_shard_comes_back_bit_for_bit(root: Path) -> None:
    shard = last_shard(root)
    digest = digest_path(shard)
    shard.unlink()
    assert explained(root, shard.relative_to(root)).state is FileState.MISSING
    assert remade(root, shard.relative_to(root))[-1] == "rollout 0001"
    assert digest_path(shard) == digest


def test_a_lost_checkpoint_comes_back_bit_for_bit_from_nothing_but_records(root: Path) -> None:
    checkpoint, policy = root / CHECKPOINT, policy_of(root, CHECKPOINT)
    digests = digest_path(checkpoint), digest_path(policy)
    shutil.rmtree(checkpoint)
    shutil.rmtree(store_of(root).root / "objects")
    assert explained(root, CHECKPOINT).state is FileState.MISSING
    ran = remade(root, CHECKPOINT)
    assert ran[0].startswith("warmstart")
    assert ran[-1] == "update 0001"
    assert (digest_path(checkpoint), digest_path(policy)) == digests


def test_what_other_code_made_is_not_rebuilt_and_its_commit_is_named(root: Path) -> None:
    store = store_of(root)
    record = next(item for item in all_records(store) if item.label == "rollout 0001")
    older = record.model_copy(
        update={"address": "0" * 64, "provenance": {**record.provenance, "commit": "abc123"}}
    )
    with (
        Lanes(workers=1) as lanes,
        pytest.raises(
            RebuildError, match="`rollout 0001` has changed(.|\n)*check out commit abc123"
        ),
    ):
        rebuild(Runtime(store=store, lanes=lanes), older)


def test_bytes_that_come_out_different_are_an_error(root: Path) -> None:
    store = store_of(root)
    record = next(item for item in all_records(store) if item.label == "rollout 0001")
    other = Reference(digest="1" * 64, suffix=".parquet")
    wrong = Record.model_validate(
        {**record.model_dump(), "outputs": {"trajectories": other.model_dump()}}
    )
    with (
        Lanes(workers=1) as lanes,
        pytest.raises(RebuildError, match="`trajectories` of `rollout 0001` comes out different"),
    ):
        rebuild(Runtime(store=store, lanes=lanes), wrong)


def test_policies_in_the_middle_of_an_arm_are_not_kept(swept: Path) -> None:
    store = store_of(swept)
    link = load_result(swept / "results", "smoke").runs["two"][0]
    run = read_run(swept, link.run)
    assert run is not None
    policies = {
        label: Record.model_validate(store.read_record(address)).outputs["policy"]
        for label, address in run.stages
        if label.split()[0] == "update"
    }
    assert store.is_collected(policies["update 0000"])
    assert store.is_intact(policies["update 0001"])


def test_nothing_of_a_finished_sweep_is_garbage(root: Path) -> None:
    before = digest_path(store_of(root).root / "objects")
    found = collected(root)
    assert (found.num_records, found.num_objects, found.runs) == (0, 0, [])
    assert found.kept_runs == 4
    assert digest_path(store_of(root).root / "objects") == before


def delete_tracked_runs(root: Path) -> None:
    client = open_client(root)
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            client.delete_run(run.info.run_id)


def test_what_results_or_mlflow_or_a_running_command_refer_to_stays(root: Path) -> None:
    results = root / "results"
    results.rename(root / "elsewhere")
    assert collected(root).kept_runs == 4  # MLflow has them
    (root / "elsewhere").rename(results)
    delete_tracked_runs(root)
    assert collected(root).kept_runs == 4  # the results name them
    shutil.rmtree(results)
    (file, *_) = sorted((root / ".starpo" / "runs").glob("*.json"))
    file.write_text(file.read_text().replace('"ending": "finished"', '"ending": "running"'))
    found = collected(root)
    assert found.kept_runs == 1
    (left,) = known_runs(root).values()
    assert all(store_of(root).read_record(address) for _, address in left.stages)


def test_what_nothing_refers_to_is_removed_after_a_dry_run_said_so(root: Path) -> None:
    delete_tracked_runs(root)
    shutil.rmtree(root / "results")
    store = store_of(root)
    before = store.contents()
    said = collected(root, dry_run=True)
    assert store.contents() == before
    assert said == collected(root)
    assert (said.num_records, said.num_objects) == (before.num_records, before.num_objects)
    assert said.num_bytes == before.num_bytes
    assert store.contents().num_bytes == 0
    assert known_runs(root) == {}


def test_a_store_in_use_is_left_alone(root: Path) -> None:
    with store_of(root).writer(purpose="training"), pytest.raises(StoreBusyError, match="training"):
        collected(root)
