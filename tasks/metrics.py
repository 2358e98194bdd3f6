"""The table of metrics: every name that a run tracks, with one line of meaning.

Names are `stage/name`. `K` and `KIND` in a name stand for a number and for a kind of level, e.g.
`evaluate/pass@8` and `evaluate/by/length 3/success`.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

_PLAYED = {
    "actions": "actions of an episode, mean",
    "episodes": "episodes played",
    "errored": "episodes that ended in an error; they are not learned from",
    "finished": "share of episodes that reached an end of the game",
    "group_return_std": "standard deviation of the return inside a group, mean over groups",
    "penalty": "sum of an episode's penalties for replies that do not parse, mean",
    "replies_cut": "share of replies cut at the token limit",
    "reply_tokens": "sampled tokens of a reply, mean",
    "return": "return and penalty of an episode, mean over those without an error",
    "sampled_tokens": "tokens that the policy sampled, all episodes together",
    "success": "share of episodes that solved their instance",
    "tokens": "tokens of all episodes together, prompts and observations included",
    "truncated": "share of episodes that a budget ended",
    "turns": "turns of an episode, mean",
    "valid_turns": "share of turns whose reply parsed",
}

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"{stage}/{name}": meaning
            for stage in ("rollout", "evaluate")
            for name, meaning in _PLAYED.items()
        },
        "train/iteration": "the iteration that the other values belong to",
        "warmstart/episodes": "demonstrations that the first policy was fitted to",
        "warmstart/demonstrated_success": "share of the demonstrations that solved their instance",
        "warmstart/tokens": "tokens of the demonstrations",
        "warmstart/first_loss": "cross-entropy of the first step, nats per token",
        "warmstart/last_loss": "cross-entropy, nats per token, mean of the last 20 steps",
        "rollout/template_stable": "1 when rendering more turns only appends tokens, else 0",
        "filter/kept": "groups that the update learns from",
        "filter/kept_share": "share of groups that the update learns from",
        "filter/dead_groups": "groups whose returns are all equal",
        "filter/dropped_episodes": "episodes without a usable return, left out of their groups",
        "filter/by/KIND/kept_share": "share of groups of one kind of level that teach",
        "filter/length": "sampled tokens of an episode, mean",
        "filter/length_kept": "the same over the groups that the update learns from",
        "refill/rounds": "rollouts of the iteration, when one did not keep enough groups",
        "refill/kept": "groups of all of them that the update learns from",
        "refill/kept_share": "share of the groups of all of them that the update learns from",
        "advantage/reference_kl": "charged divergence from the reference policy, nats per token",
        "update/kl_coefficient": "coefficient of the divergence from the reference policy",
        "advantage/episodes": "episodes with an advantage",
        "advantage/mean": "advantage of a sampled token, mean",
        "advantage/std": "advantage of a sampled token, standard deviation",
        "advantage/mass_without_success": "share of absolute advantage in groups without a success",
        "update/steps": "optimiser steps taken",
        "update/skipped_nonfinite": "steps skipped because a gradient was not finite",
        "update/skipped_empty": "1 when there was nothing to learn from, else 0",
        "update/loss": "loss of the policy, mean over steps",
        "update/value_loss": "loss of the critic, mean over steps",
        "update/value_error": "squared error of the critic's values, mean over sampled tokens",
        "update/gradient_norm": "gradient norm of the policy before clipping, mean over steps",
        "update/critic_gradient_norm": "gradient norm of the critic before clipping, mean",
        "update/entropy": "entropy of the policy, nats, mean over sampled tokens",
        "update/clipped": "share of sampled tokens whose ratio left the clip range",
        "update/kl": "divergence from the policy before the update (k3), nats per token",
        "update/reference_kl": "divergence from the reference policy, nats per token",
        "update/ratio_max": "largest probability ratio of any token",
        "update/sampler_gap": "mean |log-prob of trainer - of sampler| at the first step",
        "update/tokens": "sampled tokens learned from, over all steps",
        "evaluate/success_low": "lower end of the 95 % Wilson interval of success",
        "evaluate/success_high": "upper end of the 95 % Wilson interval of success",
        "evaluate/pass@K": "unbiased chance that one of K samples solves an instance",
        "evaluate/by/KIND/success": "success on levels of one kind",
        "evaluate/by/KIND/low": "lower end of its 95 % Wilson interval",
        "evaluate/by/KIND/high": "upper end of its 95 % Wilson interval",
        "evaluate/by/KIND/episodes": "episodes on levels of one kind",
        "diagnose/log_prob_gap_mean": "mean |log-prob of trainer - of sampler|, nats",
        "diagnose/log_prob_gap_max": "largest |log-prob of trainer - of sampler|, nats",
        "diagnose/entropy": "entropy of the policy, nats, mean over sampled tokens",
    }
)

_PLACEHOLDERS = {"K": r"\d+", "KIND": r".+"}
_PLACEHOLDER = re.compile(r"(?<![A-Z])(KIND|K)(?![A-Z])")


def meaning(name: str) -> str | None:
    """What a metric means; None for a name that the table lacks.

    Args:
        name: A tracked name, e.g. `evaluate/pass@8`.
    """
    exact = None if _PLACEHOLDER.search(name) else MEANINGS.get(name)
    if exact is not None:
        return exact
    return next((text for key, text in MEANINGS.items() if _matches(key, name)), None)


def _matches(key: str, name: str) -> bool:
    """Whether a name is an instance of a key with placeholders."""
    parts = _PLACEHOLDER.split(key)
    pattern = "".join(_PLACEHOLDERS.get(part) or re.escape(part) for part in parts)
    return len(parts) > 1 and re.fullmatch(pattern, name) is not None


def markdown() -> str:
    """The table as the page `docs/metrics.md`."""
    rows = [f"| `{name}` | {text} |" for name, text in sorted(MEANINGS.items())]
    head = ["# Metrics", "", "Made from `tasks/metrics.py`.", "", "| name | meaning |", "|---|---|"]
    return "\n".join([*head, *rows, ""])
