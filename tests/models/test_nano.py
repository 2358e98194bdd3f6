"""The nano policy: its tokenizer and its weights are functions of texts, settings and seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.folder import stop_tokens
from models.nano import ASSISTANT, END, PAD, USER, build_nano
from models.policy import Policy, save_policy
from models.settings import NANO_TAGS, NanoSettings

TEXTS = [f"<think>at {i},3</think><answer>Left || Down</answer>" for i in range(9)]
SETTINGS = NanoSettings(width=16, heads=2, head_dim=8, feed_forward=16, vocabulary=300)
POLICY = build_nano(TEXTS, settings=SETTINGS, seed=0)


def saved(folder: Path, policy: Policy) -> dict[str, bytes]:
    save_policy(policy, folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_default_has_about_four_hundred_thousand_parameters():
    texts = [f"row {number}: wall, box, goal" for number in range(1_000)]
    policy = build_nano(texts, settings=NanoSettings(), seed=0)
    count = sum(value.numel() for value in policy.decoder.parameters())
    assert 300_000 < count < 450_000
    assert len(policy.tokenizer) == 320


@pytest.mark.parametrize("token", [PAD, USER, ASSISTANT, END, *NANO_TAGS])
def test_markers_and_tags_are_single_tokens(token: str):
    ids = POLICY.tokenizer.encode(f"x{token}y")
    assert POLICY.tokenizer.convert_tokens_to_ids(token) in ids
    assert len(ids) == 3


def test_T11_padding_is_not_the_stop_token(tmp_path: Path):
    saved(tmp_path / "policy", POLICY)
    tokenizer = POLICY.tokenizer
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert stop_tokens(tmp_path / "policy") == {tokenizer.eos_token_id}


def test_training_texts_become_few_tokens():
    text = TEXTS[0]
    assert len(POLICY.tokenizer.encode(text)) < len(text) / 2


@given(st.text())
def test_every_text_survives_encoding_and_decoding(text: str):
    ids = POLICY.tokenizer.encode(text)
    assert POLICY.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_the_same_texts_in_any_order_give_the_same_bytes(tmp_path: Path):
    again = build_nano(TEXTS[::-1], settings=SETTINGS, seed=0)
    assert saved(tmp_path / "one", POLICY) == saved(tmp_path / "two", again)


def test_P8_another_process_with_another_hash_seed_writes_the_same_bytes(tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; import test_nano as t\n"
        "t.saved(Path(sys.argv[1]), t.build_nano(t.TEXTS, settings=t.SETTINGS, seed=0))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "other")],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"},
        check=True,
    )
    written = {file.name: file.read_bytes() for file in (tmp_path / "other").iterdir()}
    assert written == saved(tmp_path / "here", POLICY)


def test_the_seed_changes_the_weights_and_nothing_else(tmp_path: Path):
    one = saved(tmp_path / "one", POLICY)
    two = saved(tmp_path / "two", build_nano(TEXTS, settings=SETTINGS, seed=1))
    assert {name for name in one if one[name] != two[name]} == {"model.safetensors"}


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    build_nano(TEXTS, settings=SETTINGS, seed=0)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("wrong", [{"vocabulary": 260}, {"head_dim": 7}, {"depth": 3}])
def test_impossible_settings_are_refused(wrong: dict[str, int]):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        NanoSettings(**wrong)
