"""Log-probs of given tokens under a decoder, on packed sequences."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.decoder import Decoder


def packed_log_probs(
    decoder: Decoder,
    *,
    tokens: Tensor,
    lengths: Sequence[int],
    predict: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the distribution that tokens were sampled from.

    The temperature divides the logits before the softmax, as in sampling (L1). The head runs on the
    positions before predicted tokens only, and so does the end of the last layer.

    Args:
        decoder: The policy.
        tokens: Ids of all sequences one after another, int64, [N].
        lengths: Length of each sequence.
        predict: Which tokens' log-probs are wanted, bool, [N]; never the first of a sequence.
        temperature: Sampling temperature, above 0.

    Returns:
        Log-probs and entropies, float32, [M] each, M = number of predicted tokens.
    """
    wanted = torch.nonzero(predict).squeeze(-1)
    hidden = decoder.hidden(tokens, lengths, at=wanted - 1)
    logits = decoder.logits(hidden).float() / temperature
    log_p = torch.log_softmax(logits, dim=-1)
    log_probs = log_p.gather(-1, tokens.index_select(0, wanted)[:, None]).squeeze(-1)
    entropies = -(log_p.exp() * log_p).sum(-1)
    return log_probs, entropies
