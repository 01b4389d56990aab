"""AdamW with a warm-up and a cosine schedule, for all models here."""

from __future__ import annotations

import math
import sys
import time
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

WARM_UP = 0.03
FLOOR = 0.02


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 arithmetic on a GPU, none on a CPU."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


class Optimizer:
    """Updates a model's trainable weights along a schedule of `steps` steps."""

    def __init__(self, model: nn.Module, rate: float, steps: int) -> None:
        weights = [w for w in model.parameters() if w.requires_grad]
        matrices = [w for w in weights if w.ndim == 2]
        others = [w for w in weights if w.ndim != 2]
        groups = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.0},
        ]
        self.weights, self.steps = weights, steps
        self.inner = torch.optim.AdamW(
            groups, lr=rate, betas=(0.9, 0.95), fused=weights[0].device.type == "cuda"
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.inner, self._factor)
        self.start = time.monotonic()

    def _factor(self, step: int) -> float:
        warm_up = max(1, int(WARM_UP * self.steps))
        if step < warm_up:
            return (step + 1) / warm_up
        done = (step - warm_up) / max(1, self.steps - warm_up)
        return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def step(self, loss: Tensor) -> None:
        """Update the weights from one loss."""
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.inner.step()
        self.schedule.step()
        self.inner.zero_grad(set_to_none=True)

    def report(self, name: str, step: int, loss: Tensor, held_out: float | None = None) -> None:
        """Print the progress on stderr."""
        seconds = time.monotonic() - self.start
        after = "" if held_out is None else f" held out {held_out:.3f}"
        line = f"{name} {step}/{self.steps} loss {loss.item():.3f}{after} {seconds:.0f} s"
        print(line, file=sys.stderr, flush=True)
