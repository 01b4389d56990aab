"""A measured result: what is written, read, compared and reported, and becomes evidence.

All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import sqrt
from typing import Literal

from peagle.errors import PeagleError
from peagle.protocol import Counters
from peagle.speed.acceptance import AcceptanceBasis
from peagle.text import usd_per_million
from peagle.workload import Workload

Progress = Callable[[str, int, int], object]
"""Called with what is measured, such as a load, a domain or a server, and how many requests or
prompts of how many are answered."""

CounterSource = Literal["counters", "log"]
"""Where drafts are counted: by the engine's counters, or in the log of every instance."""

FORMAT = 1
"""Of results as JSON."""

DEFAULT_MAX_TOKENS = 256
"""Of the answer to a prompt that has no maximum of its own."""

INTERRUPTED = "interrupted"
"""``incomplete`` after Ctrl-C."""


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def utc_now() -> str:
    """The time as results have it: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def incomplete_reason(error: BaseException) -> str:
    """``incomplete`` of a measurement that this error or interrupt ended."""
    return error.message if isinstance(error, PeagleError) else INTERRUPTED


@dataclass(frozen=True)
class BenchWorkload:
    """The requests of a load: prompts from a file with the SHA-256 ``digest``, or random words.
    ``fixed_length``: every answer has ``size.output_tokens`` tokens, which else is the maximum.
    With more than one of ``turns``, they are conversations, whose turns after the first have
    ``size`` on average, and begin ``think_seconds`` after the answer before."""

    name: str
    size: Workload
    prompts: tuple[str, ...] = ()
    fixed_length: bool = True
    digest: str | None = None
    turns: int = 1
    think_seconds: float = 0.0


@dataclass(frozen=True)
class BenchLoad:
    """A workload at a number of concurrent requests, or of concurrent conversations. Each
    repetition sends ``requests`` requests; one repetition before them is not counted."""

    workload: BenchWorkload
    concurrency: int
    requests: int
    repetitions: int = 3

    @property
    def measured_requests(self) -> int:
        """Of a repetition; the first turns of conversations are not measured."""
        turns = self.workload.turns
        return self.requests - self.requests // turns if turns > 1 else self.requests

    @property
    def text(self) -> str:
        """``short-prompt x 8``."""
        return f"{self.workload.name} x {self.concurrency}"


@dataclass(frozen=True)
class BenchSetting:
    """What speculates: the drafter's name in the catalogue and K; ``None`` and 0: nothing does.
    ``imposed_rates`` are those of vLLM's synthetic sampler, by position."""

    drafter: str | None
    k: int
    imposed_rates: tuple[float, ...] = ()
    is_known: bool = True

    @property
    def text(self) -> str:
        """``no speculation``, or ``p-eagle K=3``."""
        if not self.is_known:
            return "unknown whether it speculates"
        return f"{self.drafter or 'speculation'} K={self.k}" if self.k else "no speculation"


NO_SPECULATION = BenchSetting(None, 0)
"""The setting of the target alone."""


@dataclass(frozen=True)
class Times:
    """Mean and percentiles of ``count`` times."""

    mean: float
    p50: float
    p90: float
    p99: float
    count: int


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval; ``low`` and ``high`` are the value itself when
    there is only one repetition or group."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the width of the interval as a share of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % quantile of Student's t for 1 to 30 degrees of freedom."""


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile for so many degrees of freedom, within 0.1 %; for 1 or more."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    return 1.960 + (_T[-1] - 1.960) * len(_T) / degrees


def ratio_interval(parts: Sequence[tuple[float, float]]) -> Interval | None:
    """Sum of the first numbers over sum of the second ones, with its 95 % confidence interval;
    ``None`` where the second ones sum to 0. The groups must be independent. The variance is that of
    the linearized ratio (Cochran, Sampling Techniques, 6.4)."""
    used = [(part, weight) for part, weight in parts if weight > 0]
    total_weight = sum(weight for _, weight in used)
    if total_weight <= 0:
        return None
    ratio = sum(part for part, _ in parts) / total_weight
    count = len(used)
    if count < 2:
        return Interval(ratio, ratio, ratio)
    squares = sum((part - ratio * weight) ** 2 for part, weight in used)
    half = t_quantile(count - 1) * sqrt(squares * count / (count - 1)) / total_weight
    return Interval(ratio, ratio - half, ratio + half)


@dataclass(frozen=True)
class MeasuredAcceptance:
    """Tokens per verification step, and the share of drafts accepted at each position, from the
    engine's counters before and after: other clients' requests count too."""

    length: float
    per_position: tuple[float, ...]
    drafts: int
    basis: AcceptanceBasis = "measured"


def acceptance_in(counted: Counters, setting: BenchSetting) -> MeasuredAcceptance | None:
    """The acceptance of what a server with this setting counted; ``None`` without drafts."""
    if not counted.drafts:
        return None
    return MeasuredAcceptance(
        length=1 + counted.accepted_tokens / counted.drafts,
        per_position=tuple(n / counted.drafts for n in counted.accepted_per_position),
        drafts=counted.drafts,
        basis="imposed" if setting.imposed_rates else "measured",
    )


def is_compiling(slowest: float, fastest: float) -> bool:
    """Whether kernels were still compiled in some of the repetitions at these speeds: Triton
    compiles those of GPT-OSS's experts for new sizes of a step, for minutes, 1 to 2 s each."""
    return fastest > 1.5 * slowest


@dataclass(frozen=True)
class Repetition:
    """One repetition of a load, without its warm-up. ``seconds`` is from the first request to the
    last response; of conversations, which neither begin nor end together, the time that measured
    turns take while all of them run (Little's law). ``itl``: between two outputs of a request;
    ``tpot``: per token after the first. ``errors`` are the messages of failed requests."""

    seconds: float
    requests: int
    output_tokens: int
    prompt_tokens: int
    ttft: Times | None
    itl: Times | None
    tpot: Times | None
    request_seconds: Times
    errors: tuple[str, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all requests together."""
        return self.output_tokens / self.seconds


@dataclass(frozen=True)
class BenchRow:
    """One load of one setting; the times are over the requests of all repetitions, of conversations
    over their turns after the first. ``incomplete`` says why the load ended early.
    ``cached_prompt_tokens`` of a measured prompt came from the prefix cache, by the engine's
    counters: other clients' requests count too; ``None`` where they are unknown.
    ``max_cudagraph_capture_size`` is the largest batch with a CUDA graph, in tokens."""

    setting: BenchSetting
    load: BenchLoad
    repetitions: tuple[Repetition, ...]
    tokens_per_second: Interval
    ttft: Times | None
    itl: Times | None
    tpot: Times | None
    prompt_tokens: float
    output_tokens: float
    acceptance: MeasuredAcceptance | None = None
    usd_per_million_tokens: float | None = None
    incomplete: str = ""
    cached_prompt_tokens: float | None = None
    first_turn_ttft: Times | None = None
    max_cudagraph_capture_size: int | None = None

    @property
    def cached_share(self) -> float | None:
        """The share of the measured prompts that came from the prefix cache."""
        cached, prompt = self.cached_prompt_tokens, self.prompt_tokens
        return min(cached / prompt, 1.0) if cached is not None and prompt else None

    @property
    def lacks_cache(self) -> bool:
        """Whether the prefix cache had less than half of what the workload leaves in it."""
        expected = self.load.workload.size.cached_share if self.prompt_tokens else 0.0
        return self.cached_share is not None and self.cached_share < expected / 2

    @property
    def fastest(self) -> Interval:
        """The fastest repetition, between the slowest and itself, as evidence has it."""
        speeds = [repetition.tokens_per_second for repetition in self.repetitions]
        return Interval(max(speeds), min(speeds), max(speeds))

    @property
    def errors(self) -> tuple[str, ...]:
        """The messages of all failed requests."""
        return tuple(message for repetition in self.repetitions for message in repetition.errors)

    @property
    def is_complete(self) -> bool:
        """Whether it has a speed, did not end early, and no request failed."""
        return self.tokens_per_second.value > 0 and not self.incomplete and not self.errors

    @property
    def is_imposed(self) -> bool:
        """Whether vLLM's synthetic sampler imposed its acceptance."""
        basis = self.acceptance.basis if self.acceptance else None
        return bool(self.setting.imposed_rates) or basis == "imposed"


@dataclass(frozen=True)
class BenchHost:
    """Where the load came from."""

    system: str
    python: str
    cpus: int
    cpu: str


@dataclass(frozen=True)
class BenchedServer:
    """What was measured. ``where`` is ``aws``, ``sandbox``, ``local`` or ``url``; ``stand_in`` is
    the smaller model that answers in the sandbox instead of the target. ``driver`` is that of the
    GPUs, ``cuda`` the newest CUDA that it supports: known on this machine only."""

    name: str
    where: str
    base_url: str
    model: str
    pair: str | None = None
    vllm: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    tensor_parallel_size: int | None = None
    instance_type: str | None = None
    instance_count: int | None = None
    region: str | None = None
    stand_in: str | None = None
    driver: str | None = None
    cuda: str | None = None


@dataclass(frozen=True)
class BenchResult:
    """All rows of one ``peagle bench``, with what is needed to repeat it: what ``--json`` prints
    and ``read_result`` reads from a file. ``started`` is an ISO 8601 time in UTC. ``usd_per_hour``
    is of all instances. ``incomplete`` is why the command ended early. ``spent_usd`` is what a
    sweep of an endpoint has cost so far."""

    server: BenchedServer
    started: str
    toolkit: str
    sender: tuple[str, str]
    host: BenchHost
    command: tuple[str, ...]
    rows: tuple[BenchRow, ...]
    usd_per_hour: float | None = None
    price_source: str | None = None
    incomplete: str = ""
    spent_usd: float | None = None
    format: int = FORMAT

    def by_workload(self) -> dict[BenchWorkload, list[BenchRow]]:
        """The rows of each workload, in their order."""
        rows: dict[BenchWorkload, list[BenchRow]] = {}
        for row in self.rows:
            rows.setdefault(row.load.workload, []).append(row)
        return rows

    def at_price(self, usd_per_hour: float, source: str) -> BenchResult:
        """The result at this price."""
        rows = []
        for row in self.rows:
            usd = usd_per_million(usd_per_hour, row.tokens_per_second.value)
            rows.append(replace(row, usd_per_million_tokens=usd))
        return replace(self, rows=tuple(rows), usd_per_hour=usd_per_hour, price_source=source)
