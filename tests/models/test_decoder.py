"""The decoder against `transformers`, packing against one sequence at a time, and log-probs."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from models.decoder import Decoder, DecoderConfig
from models.errors import PolicyFolderError, UnsupportedArchitectureError
from models.log_probs import packed_log_probs
from models.policy import load_decoder

SHAPE = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
VARIANTS = {
    "llama, grouped queries, own head": {"model_type": "llama", "num_key_value_heads": 2},
    "llama, theta": {"model_type": "llama", "rope_parameters": {"rope_theta": 333.0}},
    "qwen2, biases": {"model_type": "qwen2", "num_key_value_heads": 1},
    "qwen3, wide heads, tied": {
        "model_type": "qwen3",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
}
LENGTHS = [5, 1, 9, 5]


def hf_folder(folder: Path, variant: str) -> Path:
    torch.manual_seed(0)
    options = dict(SHAPE | VARIANTS[variant])
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    model = AutoModelForCausalLM.from_config(config)
    for name, value in model.named_parameters():  # norms and biases that matter
        if "norm" in name or "bias" in name:
            value.data.add_(0.3 * torch.randn(value.shape))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    options = SHAPE | {"model_type": "qwen3", "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
    return Decoder(DecoderConfig.from_dict(options))


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, 40, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(tmp_path: Path, variant: str, tokens):
    folder = hf_folder(tmp_path / "model", variant)
    decoder = load_decoder(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        ours = decoder.logits(decoder.hidden(tokens, LENGTHS)).split(LENGTHS)
        for row, mine in zip(tokens.split(LENGTHS), ours, strict=True):
            torch.testing.assert_close(mine, reference(row[None]).logits[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_have_the_names_of_transformers(tmp_path: Path, variant: str):
    folder = hf_folder(tmp_path / "model", variant)
    reference = AutoModelForCausalLM.from_pretrained(folder)
    ours = {name: value.shape for name, value in load_decoder(folder).named_parameters()}
    assert ours == {name: value.shape for name, value in reference.named_parameters()}


def test_L6_packed_equals_alone_and_left_padded(tmp_path: Path, tokens):
    folder = hf_folder(tmp_path / "model", "qwen3, wide heads, tied")
    decoder = load_decoder(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = tokens.split(LENGTHS)
    longest = max(LENGTHS)
    padded, mask = torch.zeros(2, len(rows), longest, dtype=torch.int64)
    for index, row in enumerate(rows):
        padded[index, longest - len(row) :] = row
        mask[index, longest - len(row) :] = 1
    with torch.no_grad():
        packed = decoder.logits(decoder.hidden(tokens, LENGTHS)).split(LENGTHS)
        left = reference(
            padded, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)
        ).logits
        for index, row in enumerate(rows):
            alone = decoder.logits(decoder.hidden(row, [len(row)]))
            torch.testing.assert_close(packed[index], alone, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                packed[index], left[index, longest - len(row) :], atol=1e-5, rtol=1e-5
            )


def test_a_token_changes_nothing_before_it_and_nothing_in_other_sequences(decoder, tokens):
    changed = tokens.clone()
    where = LENGTHS[0] + LENGTHS[1] + 4  # in the third sequence
    changed[where] = (changed[where] + 1) % 40
    with torch.no_grad():
        before, after = decoder.hidden(tokens, LENGTHS), decoder.hidden(changed, LENGTHS)
    end = sum(LENGTHS[:3])
    differs = (before != after).any(-1)
    assert differs[where:end].all()
    assert not differs[:where].any()
    assert not differs[end:].any()


def test_gradients_flow_to_every_parameter(decoder, tokens):
    decoder.zero_grad()
    decoder.logits(decoder.hidden(tokens, LENGTHS)).square().sum().backward()
    for name, value in decoder.named_parameters():
        assert value.grad is not None, name
        assert value.grad.abs().sum() > 0, name


def test_states_at_chosen_positions_and_their_gradients_are_those_of_all(decoder, tokens):
    at = torch.tensor([0, 7, 8, 19])
    slope = torch.randn(len(at), 32, generator=torch.Generator().manual_seed(2))
    found = []
    for chosen in (
        lambda: decoder.hidden(tokens, LENGTHS)[at],
        lambda: decoder.hidden(tokens, LENGTHS, at=at),
    ):
        decoder.zero_grad()
        states = chosen()
        (states * slope).sum().backward()
        gradients = [value.grad.clone() for value in decoder.model.parameters()]
        found.append((states.detach(), gradients))
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_L1_temperature_divides_the_logits_before_the_softmax(decoder, tokens, temperature):
    predict = torch.ones(len(tokens), dtype=torch.bool)
    predict[[0, 5, 6, 15]] = False  # the first of each sequence
    predict[9] = False
    with torch.no_grad():
        log_probs, entropies = packed_log_probs(
            decoder, tokens=tokens, lengths=LENGTHS, predict=predict, temperature=temperature
        )
        logits = decoder.logits(decoder.hidden(tokens, LENGTHS)).double()
    wanted = predict.nonzero()[:, 0].tolist()
    assert len(log_probs) == len(wanted)
    for index, position in enumerate(wanted):
        p = torch.softmax(logits[position - 1] / temperature, dim=-1)
        assert log_probs[index].item() == pytest.approx(p[tokens[position]].log().item(), abs=1e-5)
        assert entropies[index].item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-5)


def test_the_head_runs_on_the_predicted_positions_only(decoder, tokens, monkeypatch):
    rows: list[int] = []
    logits = Decoder.logits

    def count(self, hidden):
        rows.append(len(hidden))
        return logits(self, hidden)

    monkeypatch.setattr(Decoder, "logits", count)
    predict = torch.zeros(len(tokens), dtype=torch.bool)
    predict[[3, 9, 17]] = True
    with torch.no_grad():
        packed_log_probs(decoder, tokens=tokens, lengths=LENGTHS, predict=predict, temperature=1.0)
    assert rows == [3]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "mistral"}, "mistral"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_other_architectures_are_refused_by_name(change, found):
    with pytest.raises(UnsupportedArchitectureError, match=f"{found}(.|\n)*hint: "):
        DecoderConfig.from_dict(SHAPE | {"model_type": "llama", "rms_norm_eps": 1e-6} | change)


def test_old_and_new_places_of_rope_theta_are_read():
    base = SHAPE | {"model_type": "llama", "rms_norm_eps": 1e-6}
    old = DecoderConfig.from_dict(base | {"rope_theta": 5e5, "rope_scaling": None})
    new = DecoderConfig.from_dict(
        base | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    )
    assert old == new
    assert new.rope_theta == 5e5


def test_a_folder_without_config_is_refused(tmp_path: Path):
    with pytest.raises(PolicyFolderError, match=r"config\.json"):
        DecoderConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": []}))
    with pytest.raises(UnsupportedArchitectureError, match="None"):
        DecoderConfig.from_folder(tmp_path)
