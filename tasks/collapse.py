"""Collapse: how much of a reply depends on its prompt (RAGEN-2, arXiv 2604.06268).

A policy whose replies no longer depend on their prompts has a mutual information near 0, whatever
its entropy says. Replies are scored under their own prompt and under those of others.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RETRIEVED = (1, 2, 4, 8)


def collapse_metrics(
    total_log_prob: NDArray[np.float64],
    own_prompt: NDArray[np.int64],
    tokens: NDArray[np.int64],
    *,
    retrieved: Sequence[int] = RETRIEVED,
) -> dict[str, float]:
    """Mutual information of replies and prompts, entropies, retrieval of the own prompt.

    Args:
        total_log_prob: Log-prob of reply i under prompt j, summed over its tokens, [replies, N].
        own_prompt: Prompt that each reply was sampled from, [replies].
        tokens: Length of each reply, [replies].
        retrieved: The k of `retrieval@k`; those above N are left out.

    Returns:
        Numbers per token and, with `_seq`, per reply, in nats; `upper_bound` = log N;
        `retrieval@k`: share of replies that fewer than k prompts explain better than their own.
    """
    num_prompts = total_log_prob.shape[1]
    per_token = total_log_prob / tokens[:, None]
    own = per_token[np.arange(len(own_prompt)), own_prompt]
    better = (per_token > own[:, None]).sum(axis=1)
    numbers = {f"retrieval@{k}": float((better < k).mean()) for k in retrieved if k <= num_prompts}
    numbers["upper_bound"] = float(np.log(num_prompts))
    for suffix, scores in (("", per_token), ("_seq", total_log_prob)):
        matched = scores[np.arange(len(own_prompt)), own_prompt]
        highest = scores.max(axis=1)
        marginal = highest + np.log(np.exp(scores - highest[:, None]).mean(axis=1))
        gain = matched - marginal
        numbers[f"mutual_information{suffix}"] = float(gain.mean())
        numbers[f"conditional_entropy{suffix}"] = float(-matched.mean())
        numbers[f"marginal_entropy{suffix}"] = float(-marginal.mean())
        numbers[f"mutual_information_z{suffix}"] = float((gain / (marginal.std() + 1e-3)).mean())
    return numbers
