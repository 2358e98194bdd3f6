"""Whole runs, tiny ones, on a real Prefect server: what is cached, runs again, is equal."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import GateError
from tasks.store import Reference, Store

pytestmark = [pytest.mark.server, pytest.mark.slow]

TINY: dict[str, Any] = {
    "env.tag": "Bandit",
    "train.iterations": 2,
    "train.evaluate_every": 2,
    "warmstart.episodes": 1600,
    "rollout.groups": 6,
    "rollout.group_size": 4,
    "evaluate.instances": 16,
    "filter.strategy": "none",
}


def _train(store: Path, *, workers: int = 1, **changes: Any) -> dict[str, Any]:
    from flows.starpo import train

    overrides = {**TINY, **{name.replace("__", "."): value for name, value in changes.items()}}
    return train(overrides=overrides, store=str(store), workers=workers)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    del server
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def first(store: Path) -> dict[str, Any]:
    return _train(store)


def test_a_run_executes_every_stage_once(first: dict[str, Any]) -> None:
    # warm start, two evaluations, a diagnosis, a report, and four stages an iteration
    assert first["num_executed"] == 1 + 2 + 1 + 1 + 2 * 4
    assert first["num_reused"] == 0
    assert Path(first["report"]).exists()


def test_the_same_again_executes_nothing(store: Path, first: dict[str, Any]) -> None:
    again = _train(store)
    assert again["num_executed"] == 0
    assert again["policy_digest"] == first["policy_digest"]


def test_E8_a_changed_filter_reruns_the_filter_and_what_follows(
    store: Path, first: dict[str, Any]
) -> None:
    changed = _train(store, filter__strategy="top_k", filter__value=0.5)
    # reused: warm start, the first evaluation and the first rollout
    assert changed["num_reused"] == 3
    assert changed["policy_digest"] != first["policy_digest"]


def test_P8_two_workers_and_another_store_give_the_same_bits(
    tmp_path: Path, first: dict[str, Any]
) -> None:
    assert _train(tmp_path, workers=2)["policy_digest"] == first["policy_digest"]


def test_another_seed_shares_the_warm_start_only(store: Path, first: dict[str, Any]) -> None:
    other = _train(store, seed=1)
    assert other["num_reused"] == 2  # the warm start and its evaluation
    assert other["policy_digest"] != first["policy_digest"]


def _first_rollout(store: Path) -> Path:
    records = [json.loads(path.read_text()) for path in (store / "records").rglob("*.json")]
    (record,) = [item for item in records if item["label"] == "rollout 0000" and item["seed"] == 0]
    return Store(store).path(Reference.model_validate(record["outputs"]["trajectories"]))


def test_a_damaged_shard_is_made_again(store: Path, first: dict[str, Any]) -> None:
    shard = _first_rollout(store)
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    again = _train(store)
    assert again["num_executed"] >= 1
    assert again["policy_digest"] == first["policy_digest"]
    assert shard.read_bytes() == whole


@pytest.mark.parametrize("estimator", ["gae", "bilevel_gae"])
def test_PPO_with_a_critic_is_one_setting_away(store: Path, estimator: str) -> None:
    result = _train(store, advantage__estimator=estimator)
    assert (Path(result["policy"]) / "critic" / "model.safetensors").exists()


def test_a_kl_term_takes_the_first_policy_as_reference(store: Path, first: dict[str, Any]) -> None:
    result = _train(store, update__loss__kl_coefficient=0.1)
    assert result["policy_digest"] != first["policy_digest"]


def test_A16_nothing_to_learn_from_skips_updates_and_stops_the_run(store: Path) -> None:
    result = _train(
        store,
        env__settings={"risky_probability": 0.0, "safe_payout": 0.0},
        env__invalid_penalty=0.0,
        filter__strategy="top_p",
        train__iterations=4,
        stop__skipped_updates=2,
    )
    assert result["ending"] == "stopped"
    assert "2 updates in a row" in result["reason"]
    assert result["reason"] in Path(result["report"]).read_text()
    assert result["reason"] in _prefect_messages("Stopped")
    assert _mlflow_tag("starpo.reason", ending="stopped") == result["reason"]


def _prefect_messages(state: str) -> list[str | None]:
    """Messages of the flow runs that are in a state."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
    return [run.state.message for run in runs if run.state and run.state.name == state]


def _mlflow_tag(name: str, *, ending: str) -> str:
    from flows.defaults import HOME
    from tasks.tracking import open_client

    client = open_client(HOME)
    ids = [item.experiment_id for item in client.search_experiments()]
    (run,) = client.search_runs(ids, f"tags.`starpo.ending` = '{ending}'")
    assert run.info.status == "FINISHED"
    return run.data.tags[name]


PRESETS = ["starpo", "starpo-s", "snr", "grpo", "dr-grpo", "dapo", "gigpo"]


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_trains(store: Path, first: dict[str, Any], preset: str) -> None:
    tiny = {name: value for name, value in TINY.items() if name != "filter.strategy"}
    from flows.starpo import train

    result = train(overrides={**tiny, "preset": preset}, store=str(store), workers=1)
    assert result["ending"] == "finished"
    assert result["policy_digest"] != first["policy_digest"]


@pytest.mark.parametrize(
    "changes",
    [
        {"env__context": "single"},
        {"env__context": "limited", "advantage__estimator": "turn_gae"},
        {"advantage__estimator": "reinforce_pp", "update__loss__policy": "gspo"},
        {"advantage__estimator": "reinforce_pp_baseline", "update__loss__policy": "cispo"},
        {
            "update__loss__kl_coefficient": 0.1,
            "update__loss__kl_placement": "reward",
            "update__loss__kl_target": 0.01,
        },
        {"filter__strategy": "top_k", "filter__metric": "entropy", "filter__loss_scaling": "sqrt"},
        {"filter__strategy": "top_p", "filter__value": 1.0, "filter__refills": 2},
    ],
    ids=["single", "limited", "gspo", "cispo", "kl in the reward", "entropy filter", "refill"],
)
def test_each_way_of_learning_runs_and_its_audit_is_clean(
    store: Path, first: dict[str, Any], changes: dict[str, Any]
) -> None:
    from flows.asking import audit_run
    from flows.defaults import HOME

    result = _train(store, **changes)
    assert result["policy_digest"] != first["policy_digest"]
    audit = audit_run(HOME, Store(store), "last", max_gap=1e-3)
    assert audit.iterations == 2
    assert audit.is_clean, audit.findings


def test_stored_rollouts_are_asked_by_the_name_of_their_run(
    store: Path, first: dict[str, Any]
) -> None:
    from flows.asking import answer_advantage, answer_filter
    from flows.defaults import HOME

    _train(store)
    again = answer_filter(HOME, Store(store), ["last", "strategy=none,top_p"])
    assert again["strategy=none"]["agreement"] == 1.0
    assert again["strategy=none"]["kept"] == 6.0
    found = answer_advantage(HOME, Store(store), ["estimator=dr_grpo,rloo"])
    assert found["estimator=dr_grpo"]["sign_agreement"] == 1.0
    assert found["estimator=rloo"]["sign_agreement"] == 1.0
    assert first["ending"] == "finished"


def test_C1_replies_cut_at_the_limit_are_a_warning(store: Path) -> None:
    result = _train(store, rollout__max_reply_tokens=4)
    assert any("cut at the token limit" in warning for warning in result["warnings"])


def test_L5_a_gap_between_sampler_and_trainer_stops_before_the_first_update(store: Path) -> None:
    with pytest.raises(GateError, match="sampler and trainer disagree"):
        _train(store, diagnose__max_gap=1e-12)


def test_G1_the_trained_policy_loads_with_transformers(first: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(first["policy"])
    tokenizer = AutoTokenizer.from_pretrained(first["policy"])
    assert model.config.vocab_size == len(tokenizer)


def test_E5_an_evaluation_inherits_the_environment_and_names_its_overrides(
    store: Path, first: dict[str, Any]
) -> None:
    from flows.starpo import evaluate

    result = evaluate(first["policy"], {"evaluate.instances": 8}, store=str(store), workers=1)
    assert result["environment"]["tag"] == "Bandit"
    assert result["overrides"] == {"evaluate.instances": 8}
    assert result["metrics"]["evaluate/episodes"] == 8


def test_T9_an_evaluation_refuses_another_thinking_mode(store: Path, first: dict[str, Any]) -> None:
    from flows.errors import ExperimentError
    from flows.starpo import evaluate

    with pytest.raises(ExperimentError, match="thinking"):
        evaluate(first["policy"], {"env.thinking": False}, store=str(store), workers=1)
