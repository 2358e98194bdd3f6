"""Policy folders: Hugging Face form, the same bytes every time, clear refusals."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.errors import PolicyFolderError
from models.folder import stop_tokens, weights_digest, write_json
from models.policy import (
    Policy,
    build_decoder,
    load_decoder,
    load_parameters,
    load_tokenizer,
    save_next_policy,
    save_policy,
)


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_G1_transformers_loads_the_folder_unchanged(nano: Policy, nano_folder: Path):
    model, info = AutoModelForCausalLM.from_pretrained(nano_folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(nano_folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "player 1,2"}], add_generation_prompt=True, return_dict=False
    )
    ids = torch.tensor(chat)
    with torch.no_grad():
        ours = nano.decoder.logits(nano.decoder.hidden(ids, [len(ids)]))
        torch.testing.assert_close(model(ids[None]).logits[0], ours, atol=1e-5, rtol=1e-5)
        reply = model.generate(ids[None], max_new_tokens=3, do_sample=False)
    assert reply.shape[1] <= len(ids) + 3


def test_what_is_saved_is_loaded(nano: Policy, nano_folder: Path):
    loaded = load_decoder(nano_folder)
    for name, value in nano.decoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    text = "<answer>Left || Down</answer> é 箱"
    assert load_tokenizer(nano_folder).encode(text) == nano.tokenizer.encode(text)


def test_saving_twice_writes_the_same_bytes(nano: Policy, nano_folder: Path, tmp_path: Path):
    save_policy(nano, tmp_path / "again")
    assert content(tmp_path / "again") == content(nano_folder)


def test_equal_values_give_equal_json(tmp_path: Path):
    write_json(tmp_path / "one.json", {"a": 1, "b": [2]})
    write_json(tmp_path / "two.json", {"b": [2], "a": 1})
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_the_next_policy_differs_in_its_weights_alone(nano_folder: Path, tmp_path: Path):
    new = {name: value + 1 for name, value in load_parameters(nano_folder).items()}
    save_next_policy(nano_folder, new, tmp_path / "next")
    before, after = content(nano_folder), content(tmp_path / "next")
    assert {name for name in before if before[name] != after.get(name)} == {"model.safetensors"}
    assert before.keys() == after.keys()
    assert weights_digest(tmp_path / "next") != weights_digest(nano_folder)


def test_the_next_policy_keeps_neither_critic_nor_trainer_state(nano: Policy, tmp_path: Path):
    save_policy(nano, tmp_path / "first")
    for name in ("critic", "trainer"):
        (tmp_path / "first" / name).mkdir()
    save_next_policy(tmp_path / "first", nano.decoder.state_dict(), tmp_path / "next")
    assert all(file.is_file() for file in (tmp_path / "next").iterdir())


def test_weights_of_another_shape_are_refused(nano: Policy):
    weights = dict(nano.decoder.state_dict())
    weights["model.norm.weight"] = torch.ones(3)
    with pytest.raises(PolicyFolderError, match=r"model\.norm\.weight"):
        build_decoder(nano.decoder.config, weights)


def test_a_missing_parameter_is_refused(nano: Policy):
    weights = dict(nano.decoder.state_dict())
    del weights["model.norm.weight"]
    with pytest.raises(PolicyFolderError, match=r"model\.norm\.weight"):
        build_decoder(nano.decoder.config, weights)


def test_a_folder_without_weights_is_refused(tmp_path: Path):
    with pytest.raises(PolicyFolderError, match=r"model\.safetensors"):
        load_parameters(tmp_path)


def test_the_stop_token_comes_from_the_generation_config_first(tmp_path: Path):
    with pytest.raises(PolicyFolderError, match="stop token"):
        stop_tokens(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    assert stop_tokens(tmp_path) == {3}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert stop_tokens(tmp_path) == {4, 5}
