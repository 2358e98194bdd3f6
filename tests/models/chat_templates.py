"""Tokenizers with chat templates of the field, written down in their essentials."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (  # removes <think> from all replies but the last
    "{% for m in messages %}{% set c = m.content %}"
    "{% if m.role == 'assistant' %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ c }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMOLLM2 = (  # adds a system message
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful AI.<|im_end|>\n"
    "{% endif %}" + CHATML
)
NO_END = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
FORGETS = (  # shows the first message only
    "<|im_start|>user\n{{ messages[0].content }}<|im_end|>\n<|im_start|>assistant\n"
)


def make_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 260 tokens with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    vocabulary["th"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",  # noqa: S106 - no password
        eos_token="<|im_end|>",  # noqa: S106 - no password
        chat_template=template,
    )
