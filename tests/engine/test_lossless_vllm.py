"""Speculation changes the time that an answer takes, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from peagle.data import data_folder
from peagle.engine import client
from peagle.protocol import acceptance_length, piece_of, request_body
from tests.support import Peagle

pytestmark = pytest.mark.engine

MAX_TOKENS = 100
HELD_OUT = json.loads((data_folder("model_catalog") / "peagle/tiny/prompts.json").read_text())[:16]
"""Of the prompts that training never saw."""


@contextmanager
def tiny(peagle: Peagle, *options: str) -> Iterator[int]:
    """The port of an engine that serves the tiny target."""
    done = peagle("local", "up", "tiny", "--name", "lossless", *options, "--json")
    assert done.returncode == 0, done.stderr
    try:
        yield json.loads(done.stdout)["port"]
    finally:
        peagle("local", "down", "lossless")


def answers(port: int) -> list[str]:
    """Greedy answers to all held-out prompts."""
    bodies = [
        request_body(entry["prompt"], chat=entry["kind"] == "chat", max_tokens=MAX_TOKENS)
        for entry in HELD_OUT
    ]
    return [piece_of(client.ask(port, body)).text for body in bodies]


def test_greedy_answers_are_the_same_with_and_without_speculation(peagle: Peagle) -> None:
    with tiny(peagle) as port:
        before = client.counters(port)
        drafted = answers(port)
        counted = client.counters(port).since(before)
    with tiny(peagle, "--no-speculation") as port:
        alone = answers(port)

    assert drafted == alone
    assert all(drafted)
    assert counted.drafts > 200
    assert (acceptance_length(counted) or 0) >= 2.2, "on held-out prompts, at K=5"
