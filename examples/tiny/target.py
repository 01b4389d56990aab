"""The target: a Llama of a few million parameters, and its training on the corpus."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.tiny.batches import Batches
from examples.tiny.layers import Attend, Block, Rope, Shape, causal, initialize, norm
from examples.tiny.optimizer import Optimizer, autocast
from examples.tiny.tokenizer import PAD_ID

CHECK_EVERY = 300
AUX_LAYERS = (2, 5, 7)
"""The heads get the residual stream after each of these layers."""


class Target(nn.Module):
    """Llama with the output matrix tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = norm(shape)
        initialize(self, shape.layers)

    def embed(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, H]."""
        out: Tensor = self.embed_tokens(tokens)
        return out

    def logits(self, normed: Tensor) -> Tensor:
        """Hidden states after the final norm [B, T, H] -> [B, T, V]."""
        return F.linear(normed, self.embed_tokens.weight)

    def residuals(self, tokens: Tensor, rope: Rope, attends: list[Attend]) -> Iterator[Tensor]:
        """The residual stream before the first layer and after each layer."""
        x = self.embed(tokens)
        yield x
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, rope, attend)
            yield x

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, T] -> auxiliary states [B, T, 3H] and logits [B, T, V]."""
        rope = Rope(self.shape, torch.arange(tokens.shape[1], device=tokens.device))
        states = list(self.residuals(tokens, rope, [causal] * self.shape.layers))
        aux = torch.cat([states[i] for i in AUX_LAYERS], -1)
        return aux, self.logits(self.norm(states[-1]))


def loss_of(target: Target, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats, without padding."""
    with autocast(tokens.device):
        logits = target(tokens[:, :-1])[1]
    labels = tokens[:, 1:].flatten()
    return F.cross_entropy(logits.float().flatten(0, 1), labels, ignore_index=PAD_ID)


def train(target: Target, batches: Batches, steps: int, rate: float) -> float:
    """Train for `steps` batches, two of files per one of chats; the held-out loss in nats."""
    optimizer = Optimizer(target, rate, steps)
    for step in range(steps):
        tokens = batches.files() if step % 3 else batches.chats()
        loss = loss_of(target, tokens)
        optimizer.step(loss)
        if step % CHECK_EVERY == 0:
            optimizer.report("target", step, loss, held_out_loss(target, batches))
    return held_out_loss(target, batches)


@torch.no_grad()
def held_out_loss(target: Target, batches: Batches) -> float:
    """Mean loss in nats over a few held-out batches of chats."""
    losses = [loss_of(target, tokens).item() for tokens in batches.held_out(8)]
    return sum(losses) / len(losses)


def round_to_bfloat16(model: nn.Module) -> None:
    """Round every weight to bfloat16, so that the stored model equals this one."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16().float())
