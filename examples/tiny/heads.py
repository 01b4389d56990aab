"""The draft heads with the inputs that vLLM gives them, and their loss.

Shapes: B rows, T slots of real tokens, N slots including masked ones, H hidden, V vocabulary.
The real slot t contains the embedding of token t+1 with the target's hidden states at t, has
position t, and predicts token t+2. A chain that starts there predicts token t+2+d at depth d.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.tiny.layers import (
    Attend,
    Block,
    FusionBlock,
    Rope,
    Shape,
    causal,
    initialize,
    masked,
    norm,
)
from examples.tiny.target import AUX_LAYERS
from examples.tiny.tokenizer import MASK_ID


class Head(nn.Module):
    """The layers of both heads; they share the target's embedding and output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(AUX_LAYERS) * shape.hidden, shape.hidden, bias=False)
        self.midlayer = FusionBlock(shape)
        self.layers = nn.ModuleDict({str(i): Block(shape) for i in range(1, shape.layers)})
        self.norm = norm(shape)
        initialize(self, shape.layers)

    def forward(self, embedding: Tensor, hidden: Tensor, rope: Rope, attend: Attend) -> Tensor:
        """[B, N, H] twice -> the residual stream after the last layer [B, N, H]."""
        x: Tensor = self.midlayer(embedding, hidden, rope, attend)
        for layer in self.layers.values():
            x = layer(x, rope, attend)
        return x


class PEagle(Head):
    """The parallel head: all depths in one pass, masked slots share one learned hidden state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(AUX_LAYERS) * shape.hidden) * 0.02)


@dataclass(frozen=True)
class Sequences:
    """Tokens [B, T+1] with the target's outputs: aux [B, T+1, 3H], logits [B, T+1, V].

    `weights` [B, T+1] are the weights of the predictions in the loss.
    """

    tokens: Tensor
    aux: Tensor
    logits: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Slots:
    """The real slot that each of N slots continues, and its depth, both [N]."""

    base: Tensor
    depth: Tensor

    def mask(self) -> Tensor:
        """Additive [N, N]: a slot attends to real slots up to its base, and to its chain so far."""
        base, depth = self.base, self.depth
        real = (depth == 0) & (base <= base[:, None])
        chain = (base == base[:, None]) & (depth <= depth[:, None])
        return torch.zeros(real.shape, device=base.device).masked_fill(~(real | chain), -torch.inf)


def draw_slots(length: int, depths: int, keep: float, device: torch.device) -> Slots:
    """All `length` real slots, and at each further depth a share `keep` of the previous chains."""
    kept = torch.arange(length, device=device)
    bases = [kept]
    for depth in range(1, depths):
        count = max(1, round(length * keep**depth))
        kept = kept[torch.randperm(len(kept), device=device)[:count]].sort().values
        bases.append(kept)
    depth_of = [torch.full_like(base, depth) for depth, base in enumerate(bases)]
    return Slots(torch.cat(bases), torch.cat(depth_of))


def parallel_states(head: PEagle, embedding: nn.Embedding, s: Sequences, slots: Slots) -> Tensor:
    """One pass over all slots -> normed states [B, N, H]."""
    real = int((slots.depth == 0).sum())
    rows, masks = len(s.tokens), len(slots.base) - real
    tokens = torch.full((rows, masks), MASK_ID, device=s.tokens.device)
    embedded = embedding(torch.cat([s.tokens[:, 1 : real + 1], tokens], 1))
    mask_hidden = head.fc(head.mask_hidden).expand(rows, masks, -1)
    hidden = torch.cat([head.fc(s.aux[:, :real]), mask_hidden], 1)
    rope = Rope(head.shape, slots.base + slots.depth)
    normed: Tensor = head.norm(head(embedded, hidden, rope, masked(slots.mask())))
    return normed


class Unrolled:
    """EAGLE-3's attention over its own unrolled steps, as a cache that grows by one step.

    Step s at base t attends to the real slots (step 0) up to t, and to steps 1 ... s at t.
    """

    def __init__(self, length: int, device: torch.device) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        upper = torch.ones(length, length, dtype=torch.bool, device=device)
        zero = torch.zeros(length, length, device=device)
        self.before = zero.masked_fill(upper.triu(1), -torch.inf)
        self.same = zero.masked_fill(~upper.tril().triu(), -torch.inf)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys.append(k)
        self.values.append(v)
        if len(self.keys) == 1:
            return causal(q, k, v)
        mask = torch.cat([self.before, *[self.same] * (len(self.keys) - 1)], 1)
        return masked(mask)(q, torch.cat(self.keys, 2), torch.cat(self.values, 2))


def unrolled_states(head: Head, embedding: nn.Embedding, s: Sequences, steps: int) -> list[Tensor]:
    """Normed states [B, T, H] of each step, from the previous step's states and the true tokens."""
    length = s.tokens.shape[1] - 1
    attend = Unrolled(length, s.tokens.device)
    hidden = head.fc(s.aux[:, :length])
    states = []
    for step in range(steps):
        positions = torch.arange(length, device=s.tokens.device) + step
        tokens = F.pad(s.tokens[:, 1 + step :], (0, step))
        hidden = head(embedding(tokens), hidden, Rope(head.shape, positions), attend)
        states.append(head.norm(hidden))
    return states


def divergence(drafted: Tensor, s: Sequences, slots: Slots, decay: float) -> Tensor:
    """KL divergence of the drafts [B, N, V] from the target, in nats, weighted by depth."""
    positions = slots.base + slots.depth + 1
    inside = positions < s.tokens.shape[1]
    positions = positions.clamp(max=s.tokens.shape[1] - 1)
    weights = s.weights[:, positions] * inside * decay**slots.depth
    expected = s.logits[:, positions].float().log_softmax(-1)
    actual = drafted.float().log_softmax(-1)
    kl = (expected.exp() * (expected - actual)).sum(-1)
    return (kl * weights).sum() / weights.sum().clamp(min=1)
