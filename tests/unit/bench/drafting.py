"""A server in this process that drafts: it answers, and counts drafts by the prompt's text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from peagle.bench.asking import PromptRefused
from peagle.bench.prompts import PromptSet, parse_prompts
from peagle.protocol import Counters

K = 3


class Drafting:
    """Every answer has 40 tokens. A prompt that begins with ``code`` makes 10 drafts of which 30
    tokens are accepted, any other one 20 drafts of which 20 are. ``refused`` and ``dies`` are
    texts of prompts that it refuses, and at which ``error`` is raised."""

    def __init__(
        self, refused: str = "too long", dies: str = "", error: BaseException | None = None
    ) -> None:
        self.counted = Counters(5, 15, 9, (4, 3, 2))
        self.bodies: list[dict[str, Any]] = []
        self._refused, self._dies, self._error = refused, dies, error

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body.get("prompt") or body["messages"][-1]["content"]
        self.bodies.append(body)
        if self._error and text == self._dies:
            raise self._error
        if text == self._refused:
            raise PromptRefused("the prompt has 9,000 tokens")
        if text.startswith("code"):
            self.counted += Counters(10, 30, 30, (10, 10, 10))
        else:
            self.counted += Counters(20, 60, 20, (14, 4, 2))
        return {"choices": [{"text": "answer"}], "usage": {"completion_tokens": 40}}

    def counters(self) -> Counters:
        return self.counted


def prompts_of(*texts: str, domain: Callable[[str], str] = lambda text: text[:4]) -> PromptSet:
    """A file with these prompts; their domains are the first four letters."""
    lines = [json.dumps({"prompt": text, "domain": domain(text)}) for text in texts]
    return parse_prompts("\n".join(lines).encode(), "p.jsonl")
