"""What is measured, and the results. All times are in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from peagle.speed.models import AcceptanceBasis, Workload

CounterSource = Literal["counters", "log"]
"""Where drafts are counted: by the engine's counters, or in the log of every instance."""

FORMAT = 1
"""Of a ``BenchResult`` as JSON."""

DEFAULT_MAX_TOKENS = 256
"""Of the answer to a prompt that has no maximum of its own."""


@dataclass(frozen=True)
class BenchWorkload:
    """The requests of a load: prompts from a file, or of random words, about
    ``size.prompt_tokens`` each.

    ``size.prompt_tokens`` is 0 for prompts from a file. ``fixed_length``: every answer has
    ``size.output_tokens`` tokens; else that is the maximum. ``digest`` is the SHA-256 of the
    prompts from a file.
    """

    name: str
    size: Workload
    prompts: tuple[str, ...] = ()
    fixed_length: bool = True
    digest: str | None = None


@dataclass(frozen=True)
class BenchLoad:
    """A workload at a number of concurrent requests.

    Each repetition sends ``requests`` requests; one repetition before them is not counted.
    """

    workload: BenchWorkload
    concurrency: int
    requests: int
    repetitions: int = 3


@dataclass(frozen=True)
class BenchSetting:
    """What speculates: the drafter's name in the catalogue and K. ``None`` and 0: nothing does.

    ``imposed_rates``: the acceptance by position that vLLM's synthetic sampler imposes. Of a server
    without readable counters nothing ``is_known``.
    """

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
    """A value with its 95 % confidence interval over the repetitions; ``low`` and ``high`` are the
    value itself when there is only one repetition."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the width of the interval as a share of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


@dataclass(frozen=True)
class MeasuredAcceptance:
    """Tokens per verification step, and the share of drafts accepted at each position, from the
    engine's counters before and after: other clients' requests count too."""

    length: float
    per_position: tuple[float, ...]
    drafts: int
    basis: AcceptanceBasis = "measured"


@dataclass(frozen=True)
class Repetition:
    """One repetition of a load, without its warm-up.

    ``seconds`` is from the first request to the last response. ``output_tokens`` and
    ``prompt_tokens`` are counted by the server, in all requests together. ``ttft``: time to the
    first output; ``itl``: between two outputs of a request, each of several tokens with
    speculation; ``tpot``: per token after the first. ``errors`` are the messages of failed
    requests. ``sender_cpu_share`` is the share of one CPU that the busiest process of the sender
    used: near 1, the sender itself limits the load. ``machine_cpu_share`` is the share of all CPUs
    of its machine that were busy, by any process: near 1, times are too long.
    """

    seconds: float
    requests: int
    output_tokens: int
    prompt_tokens: int
    ttft: Times
    itl: Times | None
    tpot: Times | None
    request_seconds: Times
    errors: tuple[str, ...] = ()
    sender_cpu_share: float | None = None
    machine_cpu_share: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all requests together."""
        return self.output_tokens / self.seconds


@dataclass(frozen=True)
class BenchRow:
    """One load of one setting; the times are over the requests of all repetitions.

    ``saturated`` says why the number is not the engine's at this load: its queue grows, or more
    requests give no more tokens; empty otherwise. ``incomplete``: the message of the error that
    ended the load early; empty otherwise. ``usd_per_million_tokens`` is of output tokens, at this
    load and the result's price. Both shares of CPUs are the highest of the repetitions.
    """

    setting: BenchSetting
    load: BenchLoad
    repetitions: tuple[Repetition, ...]
    tokens_per_second: Interval
    ttft: Times
    itl: Times | None
    tpot: Times | None
    prompt_tokens: float
    output_tokens: float
    acceptance: MeasuredAcceptance | None = None
    usd_per_million_tokens: float | None = None
    saturated: str = ""
    incomplete: str = ""
    sender_cpu_share: float | None = None
    machine_cpu_share: float | None = None

    @property
    def fastest(self) -> Interval:
        """The fastest repetition, between the slowest and itself, as evidence has it; of a row
        without repetitions what is known of all of them."""
        speeds = [one.tokens_per_second for one in self.repetitions]
        return Interval(max(speeds), min(speeds), max(speeds)) if speeds else self.tokens_per_second

    @property
    def errors(self) -> tuple[str, ...]:
        """The messages of all failed requests."""
        return tuple(message for one in self.repetitions for message in one.errors)


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
    the smaller model that answers in the sandbox instead of the target. Unknown facts are
    ``None``."""

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


@dataclass(frozen=True)
class BenchResult:
    """All rows of one ``peagle bench``, with what is needed to repeat it.

    ``started`` is an ISO 8601 time in UTC. ``sender`` has name and version of the load generator.
    ``price_source`` says where ``usd_per_hour``, of all instances, comes from. ``incomplete`` is
    the message of the error that ended the command early; empty otherwise. ``spent_usd`` is what a
    sweep of an endpoint has cost so far, with its updates.
    """

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

    @property
    def sender_cpu_share(self) -> float | None:
        """The highest of a row's; ``None`` if all loads were too short to tell."""
        return highest(row.sender_cpu_share for row in self.rows)

    @property
    def machine_cpu_share(self) -> float | None:
        """The highest of a row's; ``None`` if all loads were too short to tell."""
        return highest(row.machine_cpu_share for row in self.rows)

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints and a file holds, without the prompts of a file;
        ``peagle.store.read_record`` reads it."""
        document = asdict(self)
        if self.spent_usd is None:
            del document["spent_usd"]
        for row in document["rows"]:
            row["load"]["workload"]["prompts"] = []
        return document


def highest(shares: Iterable[float | None]) -> float | None:
    """The highest of the shares that are known; ``None`` without any."""
    return max((share for share in shares if share is not None), default=None)


def utc_now() -> str:
    """The time as results have it: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
