"""The size of requests and the times that a user requires: what a plan, a verdict and a measurement
have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from peagle.errors import UserError
from peagle.text import format_decimal


@dataclass(frozen=True)
class Workload:
    """Requests of one size: tokens of the prompt, of the answer, of the prompt those that an
    earlier request has left in the prefix cache, and of these those that the prompts of all
    conversations begin with, which an engine keeps once."""

    prompt_tokens: int
    output_tokens: int
    cached_prompt_tokens: int = 0
    shared_prompt_tokens: int = 0

    @property
    def new_prompt_tokens(self) -> int:
        """The tokens of the prompt that the engine processes, at least one."""
        return max(self.prompt_tokens - self.cached_prompt_tokens, 1)

    @property
    def cached_share(self) -> float:
        """The share of the prompt that the cache holds."""
        return self.cached_prompt_tokens / self.prompt_tokens

    @property
    def is_conversation(self) -> bool:
        """Whether earlier turns, and not only what all prompts share, are in the cache."""
        return self.cached_prompt_tokens > self.shared_prompt_tokens

    @property
    def tokens(self) -> int:
        """The tokens of one request, prompt and output together."""
        return self.prompt_tokens + self.output_tokens

    def resized(self, prompt_tokens: int | None, output_tokens: int | None) -> Workload:
        """With other sizes, if given; of another prompt the same shares are cached and shared."""
        prompt = prompt_tokens or self.prompt_tokens
        cached = int(prompt * self.cached_share)
        shared = cached * self.shared_prompt_tokens // max(self.cached_prompt_tokens, 1)
        return Workload(prompt, output_tokens or self.output_tokens, cached, shared)

    @property
    def cached_text(self) -> str:
        """``30,720 of them cached, 12,288 of these shared by all``."""
        shared = f", {self.shared_prompt_tokens:,} of these shared by all"
        cached = f"{self.cached_prompt_tokens:,} of them cached"
        return cached + shared if self.shared_prompt_tokens else cached


WorkloadName = Literal["chat", "agent", "rag", "batch"]


PRESETS: Mapping[str, Workload] = {
    "chat": Workload(4096, 256, 3584),
    "agent": Workload(32_768, 512, 30_720, 12_288),
    "rag": Workload(8192, 384, 1024, 1024),
    "batch": Workload(1024, 256),
}
"""Usual requests by what they are for: a turn of a conversation; a step of an agent, with the
instructions and tools of all agents and its own earlier steps; a question with retrieved documents,
after common instructions; independent prompts. Chosen, not measured: the size of your own requests
is better."""


WORKLOADS: Mapping[str, Workload] = {
    "short-prompt": Workload(128, 400),
    "long-prompt": Workload(2048, 256),
    "long-answer": Workload(128, 1024),
}
"""The sizes that ``peagle bench`` measures and ``peagle verdict`` compares, by name, as in the
evidence of the catalogue."""


BENCH_WORKLOADS: Mapping[str, Workload] = {
    **WORKLOADS,
    **PRESETS,
    "conversation": Workload(6912, 256, 6656),
}
"""All that ``peagle bench`` measures by name; ``conversation`` has the prompts of the catalogue's
measurements of conversations, on average over the later turns."""


@dataclass(frozen=True)
class Slo:
    """The longest mean time to the first token, and between two outputs of a request, in seconds.
    ``None`` is no limit."""

    ttft: float | None = None
    itl: float | None = None

    def excess(self, ttft: float | None, itl: float | None) -> float | None:
        """The larger ratio of a time to its limit: at most 1 where the objective is met; ``None``
        if a limited time is unknown, 0 without limits."""
        limited = [(t, limit) for limit, t in ((self.ttft, ttft), (self.itl, itl)) if limit]
        ratios = [time / limit for time, limit in limited if time is not None]
        return max(ratios, default=0.0) if len(ratios) == len(limited) else None

    @property
    def text(self) -> str:
        """As on the command line; empty without limits."""
        limits = {"ttft": self.ttft, "itl": self.itl}
        return ",".join(
            f"{name}={format_decimal(value)}" for name, value in limits.items() if value
        )


_LONGEST_LIMIT = {"ttft": 100.0, "itl": 5.0}  # seconds: milliseconds are larger


def parse_slo(text: str) -> Slo:
    """The objective in ``ttft=0.5,itl=0.02``. Raises UserError for an unknown name, a name given
    twice, and a value that is no number of seconds."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if name in limits or not 0 < seconds <= _LONGEST_LIMIT.get(name, 0):
            raise UserError(
                f"--slo {text[:60]}: {part.strip()[:40]!r} is not a limit in seconds",
                "use ttft=SECONDS, itl=SECONDS, or both with a comma, such as ttft=0.5,itl=0.02",
                code="invalid-slo",
            )
        limits[name] = seconds
    return Slo(**limits)
