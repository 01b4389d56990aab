"""The hyperparameters, in two sizes: the full training and a smoke test of the code."""

from __future__ import annotations

from dataclasses import dataclass, field

from examples.tiny.batches import Sizes
from examples.tiny.drafting import HeadRecipe
from examples.tiny.layers import Shape


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters; rates are learning rates, tokens are per row."""

    seed: int = 20260201
    target_shape: Shape = field(default_factory=lambda: Shape(layers=8, mlp=448))
    p_eagle_shape: Shape = field(default_factory=lambda: Shape(layers=4, mlp=384))
    eagle3_shape: Shape = field(default_factory=lambda: Shape(layers=1, mlp=384))
    sizes: Sizes = field(default_factory=Sizes)
    target_steps: int = 3000
    target_rate: float = 3e-3
    p_eagle: HeadRecipe = field(
        default_factory=lambda: HeadRecipe(depths=8, keep=0.8, decay=1.0, steps=4500, rate=2e-3)
    )
    eagle3: HeadRecipe = field(
        default_factory=lambda: HeadRecipe(depths=5, keep=1.0, decay=0.9, steps=2500, rate=2e-3)
    )
    rollout_prompts: int = 40_960
    rollout_rows: int = 2048
    rollout_tokens: int = 384
    prompt_tokens: int = 192
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.0, 0.8)
    head_rows: int = 64
    head_file_rows: int = 16
    head_file_tokens: int = 1024


SMOKE = Recipe(
    target_shape=Shape(layers=8, mlp=64),
    p_eagle_shape=Shape(layers=2, mlp=64),
    eagle3_shape=Shape(layers=1, mlp=64),
    sizes=Sizes(file_rows=2, file_tokens=256, chat_rows=4, chat_tokens=128),
    target_steps=30,
    p_eagle=HeadRecipe(depths=8, keep=0.8, decay=1.0, steps=10, rate=2e-3),
    eagle3=HeadRecipe(depths=5, keep=1.0, decay=0.9, steps=10, rate=2e-3),
    rollout_prompts=32,
    rollout_rows=16,
    rollout_tokens=64,
    prompt_tokens=48,
    head_rows=4,
    head_file_rows=2,
    head_file_tokens=128,
)
FULL = Recipe()
