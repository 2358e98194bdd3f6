"""The nano policy: a Qwen3 decoder of about half a million parameters with its own tokenizer.

It is small enough to learn in minutes on two CPU cores, and its folder loads unchanged with
`AutoModelForCausalLM.from_pretrained`.
"""

import math
import re
from collections.abc import Sequence

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config

from models.decoder import Decoder, DecoderConfig
from models.policy import Policy, build_decoder
from models.settings import NANO_MARKERS, NANO_TAGS, NanoSettings

PAD, USER, ASSISTANT, END = NANO_MARKERS
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_nano(texts: Sequence[str], *, settings: NanoSettings, seed: int) -> Policy:
    """A fresh nano policy whose tokenizer fits the texts.

    Args:
        texts: Prompts and replies that the tokenizer is trained on.
        settings: Its shape.
        seed: Of the initial weights.
    """
    tokenizer = _tokenizer(texts, vocabulary=settings.vocabulary)
    end, pad = (tokenizer.convert_tokens_to_ids(token) for token in (END, PAD))
    hf_config = Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        head_dim=settings.head_dim,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        dtype="float32",
    )
    configuration = hf_config.to_dict()
    config = DecoderConfig.from_dict(configuration)
    return Policy(
        decoder=_initialise(config, seed=seed),
        tokenizer=tokenizer,
        configuration=configuration,
        generation={"eos_token_id": end, "pad_token_id": pad, "do_sample": True},
    )


def _tokenizer(texts: Sequence[str], *, vocabulary: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(NANO_TAGS),
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    split = re.compile("|".join(map(re.escape, NANO_TAGS)))  # each tag becomes one token of its own
    pieces = [piece for text in texts for piece in split.split(text)]
    tokenizer.train_from_iterator(pieces, trainer=trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in NANO_TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _initialise(config: DecoderConfig, *, seed: int) -> Decoder:
    """Normal weights, smaller where a layer writes to the residual stream (GPT-2, 2.3)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = Decoder(config).state_dict()
    parameters = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            parameters[name] = torch.ones(shape.shape)
            continue
        deviation = 0.02 if "embed" in name else config.hidden_size**-0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= math.sqrt(2 * config.num_layers)
        parameters[name] = torch.randn(shape.shape, generator=generator) * deviation
    return build_decoder(config, parameters)
