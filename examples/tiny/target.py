"""The target: a Llama of a few million parameters, and its training on the corpus."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.tiny.batches import Batches
from examples.tiny.layers import Block, Rope, Shape, initialize, norm
from examples.tiny.optimizer import Optimizer, autocast
from examples.tiny.tokenizer import PAD_ID

CHECK_EVERY = 300


class Target(nn.Module):
    """Llama with the output matrix tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = norm(shape)
        initialize(self, shape.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]."""
        rope = Rope(self.shape, torch.arange(tokens.shape[1], device=tokens.device))
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, rope)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def loss_of(target: Target, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats, without padding."""
    with autocast(tokens.device):
        logits = target(tokens[:, :-1])
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
