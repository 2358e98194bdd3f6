"""A nano policy on disk whose distribution is far from uniform, and an engine that holds it."""

from pathlib import Path

import pytest
from engine_play import loaded

from models.engines.network import SamplingNetwork
from models.engines.torch_engine import TorchEngine
from models.nano import build_nano
from models.policy import Policy, save_policy
from models.settings import NanoSettings

TEXTS = [
    "player 1,2 box 2,2 goal 4,2\n",
    "<think>at 2,3 push Left</think><answer>Left || Down</answer>",
    "<think>go Right, then Up</think><answer>Right || Up || Up</answer>",
]
SETTINGS = NanoSettings(
    layers=2, width=32, heads=2, head_dim=16, feed_forward=48, vocabulary=288, context=256
)


@pytest.fixture(scope="session")
def nano() -> Policy:
    policy = build_nano(TEXTS, settings=SETTINGS, seed=0)
    for name, value in policy.decoder.named_parameters():
        if name.endswith(("embed_tokens.weight", "o_proj.weight", "down_proj.weight")):
            value.data.mul_(8)  # else the softmax is almost flat and the context hardly matters
    return policy


@pytest.fixture(scope="session")
def nano_folder(nano: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano") / "policy"
    save_policy(nano, folder)
    return folder


@pytest.fixture
def engine(nano_folder: Path) -> TorchEngine:
    return loaded(nano_folder)


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of prompt tokens that are computed, not taken from a cache."""
    counts: list[int] = []
    prefill = SamplingNetwork.prefill

    def count(self, slots, new, starts):
        counts.extend(map(len, new))
        return prefill(self, slots, new, starts)

    monkeypatch.setattr(SamplingNetwork, "prefill", count)
    return counts
