"""Conversations in real vLLM with a P-EAGLE head: the prefix cache has hits and changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.machine import Engine
from peagle.protocol import (
    Counters,
    acceptance_length,
    follow_up_body,
    parse_counters,
    parse_piece,
    request_body,
)
from peagle_serve.contract import COUNTERS_ATTRIBUTE
from tests.engine.serving import TINY, Container, speculation

pytestmark = pytest.mark.engine
TURNS = 5
PROMPTS = [line["prompt"] for line in json.loads((TINY / "prompts.json").read_text())][: 4 + TURNS]


class Talk:
    """Four conversations with one engine, each of ``TURNS`` turns."""

    def __init__(self, engine: Engine, folder: Path, **environment: str) -> None:
        folder.mkdir()
        self.container = Container(
            engine,
            folder,
            SM_VLLM_SPECULATIVE_CONFIG=speculation(TINY / "p-eagle", num_speculative_tokens=8),
            SM_VLLM_DTYPE="float32",
            SM_VLLM_BLOCK_SIZE="32",
            **environment,
        )
        self.answers: list[str] = []
        try:
            self.container.wait_until_healthy()
            first = [request_body(text, chat=True, max_tokens=96) for text in PROMPTS[:4]]
            bodies = self._turn(first, 1)
            before = self._counters()
            for turn in range(2, TURNS + 1):
                bodies = self._turn(bodies, turn)
            self.later = self._counters().since(before)
        finally:
            self.container.end()

    def _turn(self, bodies: list[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
        texts = [parse_piece(self._ask(body)).written for body in bodies]
        self.answers += texts
        following = PROMPTS[turn:]
        return [follow_up_body(*parts) for parts in zip(bodies, texts, following, strict=False)]

    def _ask(self, body: dict[str, Any], attribute: str = "") -> dict[str, Any]:
        status, answer = self.container.ask("POST", "/invocations", body, attribute)
        assert status == 200, answer
        document: dict[str, Any] = json.loads(answer)
        return document

    def _counters(self) -> Counters:
        return parse_counters(self._ask({}, COUNTERS_ATTRIBUTE))


def test_conversations_hit_the_cache_and_accept_as_much_as_without(
    engine: Engine, tmp_path: Path
) -> None:
    cached = Talk(engine, tmp_path / "cached")
    without = Talk(engine, tmp_path / "without", SM_VLLM_NO_ENABLE_PREFIX_CACHING="true")
    assert cached.answers == without.answers
    assert len(cached.answers) == 4 * TURNS
    share = cached.later.cached_share
    assert share is not None
    assert share > 0.6
    assert not without.later.cache_hits
    assert cached.later.drafts == without.later.drafts > 200
    assert acceptance_length(cached.later) == acceptance_length(without.later)
