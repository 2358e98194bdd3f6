"""Settings of sampling, policies, losses and optimisers: importable without torch.

Composing an experiment, asking stored shards and reusing finished stages need these alone; what
computes is imported when it computes.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, model_validator

NANO_MARKERS = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>")
NANO_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""What the nano tokenizer has one token each for, besides bytes and merges."""


class Sampling(BaseModel):
    """The distribution that tokens are sampled from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(
        default=1.0, ge=0, le=10, description="Divides the logits; 0 takes the likeliest token."
    )
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Smallest probability mass kept; 1 keeps everything."
    )
    top_k: int = Field(default=0, ge=0, description="Number of tokens kept; 0 keeps all.")

    @property
    def truncates(self) -> bool:
        """Whether some tokens are excluded, and the log-probs of the others renormalised."""
        return self.top_p < 1 or self.top_k > 0


class NanoSettings(BaseModel):
    """Shape of a nano policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int = Field(default=2, ge=1, description="Decoder layers.")
    width: int = Field(default=128, ge=8, description="Size of the hidden states.")
    heads: int = Field(default=4, ge=1, description="Attention heads.")
    head_dim: int = Field(default=32, ge=2, multiple_of=2, description="Size of a head.")
    feed_forward: int = Field(default=256, ge=8, description="Size of the feed-forward layer.")
    vocabulary: int = Field(default=320, ge=280, description="Tokens; 256 of them are bytes.")
    context: int = Field(default=1024, ge=64, description="Most tokens of an episode.")

    @model_validator(mode="after")
    def _check(self) -> "NanoSettings":
        if self.vocabulary < 256 + len(NANO_MARKERS) + len(NANO_TAGS):
            raise ValueError(f"vocabulary={self.vocabulary} has no room for bytes and markers")
        return self


class SupervisedSettings(BaseModel):
    """How a policy is fitted to demonstrations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: int = Field(default=32, ge=1, description="Episodes per step.")
    epochs: int = Field(default=1, ge=1, description="Passes over the demonstrations.")
    learning_rate: float = Field(default=3e-3, gt=0, description="AdamW, after the ramp.")
    ramp_share: float = Field(
        default=0.05, ge=0, lt=1, description="Share of the steps that raise the rate linearly."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW.")
    max_gradient_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled to it.")


class Reduction(StrEnum):
    """How token losses become one number."""

    TOKEN_MEAN = "token-mean"  # noqa: S105 - not a password
    """Sum over tokens / number of tokens: long replies weigh more."""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"  # noqa: S105
    """Mean over sequences of the sum over tokens."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"  # noqa: S105
    """Mean over sequences of the mean over tokens: every sequence weighs the same."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"  # noqa: S105
    """Sum over tokens / (rows x longest row): Dr.GRPO's constant."""


class KLEstimator(StrEnum):
    """Estimators of KL(policy, reference) from d = log policy - log reference (Schulman 2020)."""

    K1 = "k1"
    """d: unbiased, may be negative; as a loss its expected gradient is zero."""
    ABS = "abs"
    """|d|."""
    K2 = "k2"
    """d squared / 2: biased, low variance, its gradient is that of the KL."""
    K3 = "k3"
    """exp(-d) + d - 1: unbiased, never negative."""


class PolicyLoss(StrEnum):
    """How the ratio of policy and sampler is bounded."""

    PPO = "ppo"
    """Clipped per token, with dual clip (arXiv 1707.06347, 1912.09729)."""
    GSPO = "gspo"
    """The sequence's ratio, the geometric mean over its tokens, is clipped (arXiv 2507.18071)."""
    CISPO = "cispo"
    """The ratio is a clipped constant weight of the log-prob: no token loses its gradient
    (arXiv 2506.13585)."""


class KLPlacement(StrEnum):
    """Where the KL to the reference policy enters."""

    LOSS = "loss"
    REWARD = "reward"


class KLTerm(BaseModel):
    """A KL term with its coefficient of the moment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    coefficient: float
    estimator: KLEstimator


class LossSettings(BaseModel):
    """What the update minimises."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: PolicyLoss = Field(default=PolicyLoss.PPO, description="ppo, gspo or cispo.")
    clip_low: float = Field(default=0.2, ge=0, lt=1, description="Ratio may fall to 1 - clip_low.")
    clip_high: float = Field(default=0.28, ge=0, description="Ratio may rise to 1 + clip_high.")
    dual_clip: float | None = Field(
        default=3.0, gt=1, description="Bound on the loss of tokens with negative advantage."
    )
    entropy_coefficient: float = Field(default=0.0, ge=0, description="Entropy bonus.")
    reduction: Reduction = Field(
        default=Reduction.TOKEN_MEAN, description="How token losses become one number."
    )
    kl_coefficient: float = Field(
        default=0.0, ge=0, description="KL to the reference policy; 0 needs none."
    )
    kl_placement: KLPlacement = Field(
        default=KLPlacement.LOSS, description="In the loss, or subtracted from the reward."
    )
    kl_target: float | None = Field(
        default=None,
        gt=0,
        description="KL per token to hold: the coefficient then follows (arXiv 1909.08593, 2.2).",
    )
    kl_horizon: int = Field(
        default=10_000, ge=1, description="Episodes over which an adaptive coefficient follows."
    )
    kl_estimator: KLEstimator = Field(
        default=KLEstimator.K3, description="How that KL is estimated: k1, abs, k2 or k3."
    )
    importance_cap: float | None = Field(
        default=None,
        gt=0,
        description="Corrects for a sampler that differs from the trainer: old log-probs are "
        "computed by the trainer, tokens weigh trainer / sampler, at most this.",
    )
    value_clip: float | None = Field(
        default=0.5, gt=0, description="Values may move this far from the old ones (critic)."
    )

    @property
    def kl_in_loss(self) -> bool:
        """Whether the update needs the reference policy."""
        return self.kl_coefficient > 0 and self.kl_placement is KLPlacement.LOSS

    @property
    def kl_in_reward(self) -> bool:
        """Whether the advantage needs the reference policy."""
        return self.kl_coefficient > 0 and self.kl_placement is KLPlacement.REWARD


class OptimiserSettings(BaseModel):
    """How the loss is minimised."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=7e-4, gt=0, description="AdamW, policy.")
    critic_learning_rate: float = Field(default=1e-3, gt=0, description="AdamW, critic.")
    ramp_updates: int = Field(
        default=10, ge=0, description="Updates over which the rates rise linearly."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW, first moment.")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="AdamW, second moment.")
    max_gradient_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled to it.")
    epochs: int = Field(default=1, ge=1, description="Passes over a rollout.")
    mini_batches: int = Field(default=2, ge=1, description="Optimiser steps per pass.")
    micro_tokens: int = Field(
        default=8192, ge=1, description="Most tokens per forward pass; changes only memory."
    )
