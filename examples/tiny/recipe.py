"""The hyperparameters, in two sizes: the full training and a smoke test of the code."""

from __future__ import annotations

from dataclasses import dataclass, field

from examples.tiny.batches import Sizes
from examples.tiny.layers import Shape


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of the target; tokens are per row, and the rate is the learning rate."""

    seed: int = 20260201
    target_shape: Shape = field(default_factory=lambda: Shape(layers=8, mlp=448))
    sizes: Sizes = field(default_factory=Sizes)
    target_steps: int = 3000
    target_rate: float = 3e-3


SMOKE = Recipe(
    target_shape=Shape(layers=8, mlp=64),
    sizes=Sizes(file_rows=2, file_tokens=256, chat_rows=4, chat_tokens=128),
    target_steps=30,
)
FULL = Recipe()
