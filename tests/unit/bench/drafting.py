"""A server in this process that drafts: it answers, and counts drafts by the prompt's text."""

import json
from collections.abc import Callable
from typing import Any

from peagle.bench.result import NO_SPECULATION, BenchedServer, BenchSetting
from peagle.bench.targets import BenchTarget, OpenAiServer, PromptRefused
from peagle.bench.workloads import PromptSet, parse_prompts
from peagle.protocol import Counters

K = 3
Ask = Callable[[dict[str, Any]], dict[str, Any]]


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

    def counters(self) -> Counters | None:
        return self.counted

    def target(self, *imposed_rates: float) -> BenchTarget:
        """This server as a bench sees it."""
        return target_of(self.ask, self.counters, BenchSetting("p-eagle", K, imposed_rates))


def target_of(
    ask: Ask,
    read_counters: Callable[[], Counters | None] = lambda: None,
    setting: BenchSetting | None = None,
    name: str = "peagle-tiny",
    chat: bool = True,
) -> BenchTarget:
    """A server that answers with ``ask``."""

    class Server(OpenAiServer):
        def ask(self, body: dict[str, Any]) -> dict[str, Any]:
            return ask(body)

    url = "http://127.0.0.1:1/v1"
    facts = BenchedServer(name, "local", url, "peagle/tiny", "peagle/tiny+p-eagle", "0.28.0")
    server = Server(url, "peagle/tiny", chat=chat)
    return BenchTarget(server, facts, setting or NO_SPECULATION, read_counters)


def prompts_of(*texts: str, domain: Callable[[str], str] = lambda text: text[:4]) -> PromptSet:
    """A file with these prompts; their domains are the first four letters."""
    lines = [json.dumps({"prompt": text, "domain": domain(text)}) for text in texts]
    return parse_prompts("\n".join(lines).encode(), "p.jsonl")
