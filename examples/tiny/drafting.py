"""Train the heads, and simulate their acceptance: vLLM's greedy drafting loop in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.tiny.heads import (
    Head,
    PEagle,
    Sequences,
    Slots,
    divergence,
    draw_slots,
    parallel_states,
    unrolled_states,
)
from examples.tiny.optimizer import Optimizer, autocast
from examples.tiny.target import Target
from examples.tiny.tokenizer import PAD_ID

REPORT_EVERY = 200


@dataclass(frozen=True)
class HeadRecipe:
    """How to train a head.

    `depths` in training, the share `keep` of chains at each further depth, the factor `decay` of
    the loss at each further depth, the number of `steps`, and the learning `rate`.
    """

    depths: int
    keep: float
    decay: float
    steps: int
    rate: float


Rollout = tuple[Tensor, Tensor]
"""Tokens [B, T] with the prompts' lengths [B]."""


@torch.no_grad()
def target_outputs(target: Target, rollout: Rollout) -> Sequences:
    """Run the target over a rollout; prompts have a small weight in the loss, padding none."""
    tokens, lengths = rollout
    aux, logits = target(tokens)
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    answer = positions >= lengths[:, None] - 1
    after = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], PAD_ID)], 1)
    weights = torch.where(answer, 1.0, 0.1) * (after != PAD_ID)
    return Sequences(tokens, aux, logits, weights)


def drafts(
    head: Head, target: Target, s: Sequences, depths: int, keep: float
) -> tuple[Tensor, Slots]:
    """Draft logits [B, N, V] with their slots; `keep` 1.0 keeps all chains."""
    length = s.tokens.shape[1] - 1
    if isinstance(head, PEagle):
        slots = draw_slots(length, depths, keep, s.tokens.device)
        return target.logits(parallel_states(head, target.embed_tokens, s, slots)), slots
    slots = draw_slots(length, depths, 1.0, s.tokens.device)
    states = unrolled_states(head, target.embed_tokens, s, depths)
    return target.logits(torch.cat(states, 1)), slots


def train(
    head: Head, target: Target, recipe: HeadRecipe, batches: Iterator[Rollout], name: str
) -> None:
    """Train a head against the frozen target."""
    optimizer = Optimizer(head, recipe.rate, recipe.steps)
    for step in range(recipe.steps):
        s = target_outputs(target, next(batches))
        with autocast(s.tokens.device):
            drafted, slots = drafts(head, target, s, recipe.depths, recipe.keep)
        loss = divergence(drafted, s, slots, recipe.decay)
        optimizer.step(loss)
        if step % REPORT_EVERY == 0:
            optimizer.report(name, step, loss)


@torch.no_grad()
def acceptance(head: Head, target: Target, rollout: Rollout, depth: int) -> list[float]:
    """The acceptance rate of each position over greedy rollouts; 1 + their sum is the length."""
    s = target_outputs(target, rollout)
    drafted, _ = drafts(head, target, s, depth, 1.0)
    length = s.tokens.shape[1] - 1
    guesses = drafted.argmax(-1).view(len(s.tokens), depth, length)
    accepted, rounds = [0] * depth, 0
    for row in range(len(s.tokens)):
        tokens = s.tokens[row].tolist()
        end = tokens.index(PAD_ID) if PAD_ID in tokens else len(tokens)
        guess = guesses[row].tolist()
        for kept in _rounds(tokens[:end], int(rollout[1][row]), guess):
            rounds += 1
            for position in range(kept):
                accepted[position] += 1
    return [count / max(1, rounds) for count in accepted]


def _rounds(tokens: list[int], prompt: int, guess: list[list[int]]) -> Iterator[int]:
    """The accepted drafts of each round; a round at t knows the tokens up to t+1."""
    depth, t = len(guess), prompt - 1
    while t + 1 + depth < len(tokens):
        kept = 0
        while kept < depth and guess[kept][t] == tokens[t + 2 + kept]:
            kept += 1
        yield kept
        t += kept + 1


Source = Callable[[], Rollout]


def mixed(sources: list[Source]) -> Iterator[Rollout]:
    """Batches of the sources in turn, without end."""
    while True:
        for source in sources:
            yield source()
