"""Send a load with NVIDIA's aiperf, one process per load, and evaluate its requests: speed,
latencies, acceptance, cost.

aiperf is installed from a lock file in an environment of its own, and shares no package with the
toolkit or the engine. It gets complete request bodies, so it needs no tokenizer; since it loads one
all the same, it gets one of two words. The server counts all tokens.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from peagle import __version__
from peagle.bench.result import (
    BenchedServer,
    BenchHost,
    BenchLoad,
    BenchResult,
    BenchRow,
    Progress,
    Repetition,
    Times,
    acceptance_in,
    incomplete_reason,
    ratio_interval,
    silent,
    utc_now,
)
from peagle.bench.targets import ANSWER_SECONDS, BenchTarget, OpenAiServer, Probe, probe
from peagle.bench.workloads import request_bodies
from peagle.data import data_folder
from peagle.engine.dummy import write_tokenizer
from peagle.engine.machine import Installation
from peagle.engine.process import AppendedLines, run_program
from peagle.errors import EngineError, Fix, PeagleError, UserError, parsing, to_count
from peagle.protocol import Counters, engine_message
from peagle.store import home
from peagle.text import sanitize, usd_per_million
from peagle_serve import json_reader
from peagle_serve.warm import UnknownDevice, cpu_device

AIPERF = "0.13.0"
"""The version in the lock file."""

NEEDED_BYTES = 2**30
"""Disk space for the environment and for unpacking."""


class SenderMissing(UserError, code="bench-missing"):
    """The load generator is not installed on this machine."""


def sender_installation() -> Installation:
    """aiperf as this toolkit's lock file has it."""
    lock = data_folder("requirements") / "aiperf.txt"
    folder = home() / "engines" / f"aiperf-{AIPERF}"
    return Installation("aiperf", folder, (lock,), "import aiperf.cli", NEEDED_BYTES)


def find_sender() -> Aiperf:
    """The installed one. Raises SenderMissing with the command that installs it."""
    installation = sender_installation()
    if not installation.is_complete():
        message = f"the load generator aiperf {AIPERF} is not installed on this machine"
        raise SenderMissing(message, Fix("install it", ("peagle", "bench", "install")))
    return Aiperf(installation.folder / "bin" / "aiperf", AIPERF)


Body = Mapping[str, Any]
"""A complete request body; it asks for a stream with token counts."""


@dataclass(frozen=True)
class SentRequest:
    """One request as the sender timed it, in seconds since 1970 and until the first output;
    ``gaps`` are between outputs. ``repetition`` counts from 1; 0 is the warm-up. ``turn`` of a
    conversation counts from 0."""

    repetition: int
    start: float
    end: float
    ttft: float | None = None
    gaps: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    turn: int = 0


@dataclass(frozen=True)
class Sent:
    """All requests of a load, also of one that ended early: ``error`` is then why."""

    requests: tuple[SentRequest, ...]
    error: str = ""


_KEY = "PEAGLE_BENCH_KEY"
_PHASE = "load"
"""The phases are called ``load0``, ``load1``, ...; the first is the warm-up."""

_LONGEST = 300


@dataclass(frozen=True)
class Aiperf:
    """aiperf as installed. It sends requests, so many at a time, and times their outputs."""

    program: Path
    version: str

    def send(
        self,
        server: OpenAiServer,
        phases: Sequence[Sequence[Body]],
        concurrency: int,
        progress: Callable[[int], object] = lambda finished: None,
        turns: int = 1,
        think_seconds: float = 0.0,
        spare: Sequence[Body] = (),
    ) -> Sent:
        """Send the bodies of each phase, the warm-up first; a phase begins when the previous one
        has ended. Each ``turns`` bodies after one another are a conversation: one is sent
        ``think_seconds`` after the answer to the one before. aiperf skips a conversation, or a
        single prompt, where a phase ends, and begins again after the last: ``spare`` ones keep it
        from sending a prompt twice, which would be in the cache. ``progress`` receives the number
        of finished requests. Requests that fail are results. Raises EngineError when aiperf fails
        before it sends anything."""
        with tempfile.TemporaryDirectory(prefix="peagle-bench-") as name:
            folder = Path(name)
            write_tokenizer(folder / "tokenizer", ())  # aiperf needs one; the server counts
            with (folder / "bodies.jsonl").open("w", encoding="utf-8") as stream:
                for number, body in enumerate(chain(*phases, spare)):
                    line: Mapping[str, Any] = body
                    if turns > 1:
                        session, turn = divmod(number, turns)
                        delay = 1e3 * think_seconds if turn else 0.0
                        line = {"session_id": str(session), "delay": delay, "payload": body}
                    stream.write(json.dumps(line) + "\n")
            counts = [len(bodies) for bodies in phases]
            config = _configuration(folder, server, counts, concurrency, turns)
            (folder / "load.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
            records = folder / "out" / "profile_export.jsonl"
            _run(self.program, folder, server.key, records, progress)
            requests = tuple(requests_in(AppendedLines(records).read()))
            log = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
            errors = [line for line in log if " ERROR " in line or "Error:" in line]
            last_error = (errors or log or ["no output"])[-1].strip()[:_LONGEST]
            if not requests:
                raise EngineError(f"aiperf sent nothing: {last_error}", code="load-failed")
            missing = sum(counts) - len(requests)
            left_out = f"aiperf left out {missing} of {sum(counts)} requests: {last_error}"
            return Sent(requests, left_out if missing else "")


def _configuration(
    folder: Path, server: OpenAiServer, counts: Sequence[int], concurrency: int, turns: int
) -> dict[str, Any]:
    """aiperf's configuration. The bodies are sent in the order of the file, through all phases;
    those of a conversation as they are, by its format of traces, which alone has complete bodies
    with sessions and delays."""
    endpoint: dict[str, Any] = {
        "urls": [server.base_url.removesuffix("/v1")],
        "type": "chat" if server.chat else "completions",
        "streaming": True,
        "use_server_token_count": True,
        "timeout": ANSWER_SECONDS,
    }
    if server.key:
        endpoint["api_key"] = f"${{{_KEY}}}"  # aiperf takes it from the environment
    return {
        "benchmark": {
            "models": [server.model],
            "endpoint": endpoint,
            "tokenizer": {"name": str(folder / "tokenizer")},
            "datasets": [
                {"name": "bodies", "type": "file", "path": str(folder / "bodies.jsonl"),
                 "format": "mooncake_trace" if turns > 1 else "raw_payload",
                 "sampling": "sequential"}
            ],
            "phases": [
                {
                    "name": f"{_PHASE}{number}",
                    "kind": "profiling" if number else "warmup",
                    "type": "concurrency",
                    "sessions" if turns > 1 else "requests": count // turns,
                    "concurrency": min(concurrency, count // turns),
                }
                for number, count in enumerate(counts)
            ],
            "artifacts": {"dir": str(folder / "out"), "records": ["jsonl"], "auto_plot": False},
            "gpu_telemetry": {"enabled": False},
            "server_metrics": {"enabled": False},
            "runtime": {"ui": "none"},
        }
    }  # fmt: skip


def _run(
    program: Path, folder: Path, key: str | None, records: Path, progress: Callable[[int], object]
) -> None:
    """Run aiperf to its end; an interrupt ends its processes too."""
    names = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    # Its cache of prepared data and all else it writes belong to this load.
    environment |= {"HOME": str(folder), "NO_COLOR": "1"} | ({_KEY: key} if key else {})
    lines, finished = AppendedLines(records), 0

    def watch() -> None:
        nonlocal finished
        finished += sum(1 for _ in lines.read())
        progress(finished)

    argv = [str(program), "profile", "--config", str(folder / "load.yaml")]
    run_program(argv, environment, folder / "log", watch)
    watch()


def requests_in(lines: Iterable[bytes]) -> Iterator[SentRequest]:
    """The requests of these lines. Raises EngineError for another format."""
    what = "a record of aiperf"
    for line in lines:
        with parsing(what, EngineError):
            yield _request(json_reader.read(line, what, limit=64 << 20))


def _request(document: Mapping[str, Any]) -> SentRequest:
    metadata, metrics = document["metadata"], document["metrics"]
    repetition = to_count(int(metadata["phase_name"].removeprefix(_PHASE)))
    turn = to_count(metadata.get("turn_index") or 0)
    start, end = (metadata[f"request_{at}_ns"] / 1e9 for at in ("start", "end"))
    if error := document.get("error"):
        if not isinstance(error, dict):
            error = {"message": error}
        text = str(error.get("message") or error.get("type") or "the request failed")
        if code := error.get("code"):
            text = f"HTTP {code}: {engine_message(text)}"
        return SentRequest(repetition, start, end, error=sanitize(text, _LONGEST), turn=turn)
    written = metrics.get("usage_completion_tokens", {}).get("value")
    if not written or "time_to_first_token" not in metrics:
        # vLLM reports an error after the first output as an event of the stream.
        why = "the answer ended early, or without its number of tokens"
        return SentRequest(repetition, start, end, error=why, turn=turn)
    prompt = metrics.get("usage_prompt_tokens")
    gaps = metrics.get("inter_chunk_latency", {}).get("value", ())
    return SentRequest(
        repetition,
        start,
        end,
        metrics["time_to_first_token"]["value"] / 1e3,
        tuple(gap / 1e3 for gap in gaps),
        to_count(prompt["value"]) if prompt else None,
        to_count(written),
        turn=turn,
    )


LoadProgress = Callable[[int, int], object]
"""Called with how many requests of how many have ended."""

Measure = Callable[[BenchLoad, LoadProgress], BenchRow]
"""Measures one load of the server that serves."""


def bench(
    target: BenchTarget,
    loads: Sequence[BenchLoad],
    sender: Aiperf,
    command: Sequence[str] = (),
    progress: Progress = silent,
) -> BenchResult:
    """Measure the loads one after another. An error or an interrupt after the first row ends it and
    keeps the rows, with ``incomplete``; before, it is raised."""
    result = new_result(target.facts, sender, command, target.usd_per_hour, target.price_source)
    measure = make_measure(target, sender)
    rows: list[BenchRow] = []
    ended = ""
    for load in loads:
        try:
            rows.append(measure(load, partial(progress, load.text)))
            ended = rows[-1].incomplete
        except (PeagleError, KeyboardInterrupt) as error:
            if not rows:
                raise
            ended = incomplete_reason(error)
        if ended:
            break
    return replace(result, rows=tuple(rows), incomplete=ended)


def new_result(
    server: BenchedServer,
    sender: Aiperf,
    command: Sequence[str],
    usd_per_hour: float | None,
    price_source: str | None,
) -> BenchResult:
    """A result without rows, of a load from this machine that begins now."""
    cpu = platform.machine()
    with suppress(UnknownDevice):
        cpu = cpu_device()["cpu"] or cpu
    return BenchResult(
        server=server,
        started=utc_now(),
        toolkit=__version__,
        sender=("aiperf", sender.version),
        host=BenchHost(platform.platform(), platform.python_version(), os.cpu_count() or 0, cpu),
        command=tuple(command),
        rows=(),
        usd_per_hour=usd_per_hour,
        price_source=price_source,
    )


def make_measure(target: BenchTarget, sender: Aiperf) -> Measure:
    """The function that measures loads of ``target``, which is probed once. Raises what ``probe``
    raises."""
    probed = probe(target.server)
    return lambda load, progress: measure_load(target, load, probed, sender, progress)


def measure_load(
    target: BenchTarget, load: BenchLoad, probed: Probe, sender: Aiperf, progress: LoadProgress
) -> BenchRow:
    """Send the load, which begins with a warm-up that is not counted, and evaluate it. Raises
    EngineError when no request succeeds."""
    workload = load.workload
    fixed_length = workload.fixed_length and probed.fixed_length
    load = replace(load, workload=replace(workload, fixed_length=fixed_length))
    *phases, spare = request_bodies(
        load,
        model=target.server.model,
        chat=target.server.chat,
        words=probed.words(workload.size.prompt_tokens),
        added_words=probed.added_words(workload.size.new_prompt_tokens),
        spare=2 * (1 + load.repetitions),
    )
    total = sum(map(len, phases))

    def read_counters() -> Counters | None:
        with suppress(PeagleError):  # the server has died, or its log may not be read
            return target.read_counters()
        return None

    if workload.size.shared_prompt_tokens:
        # From now on the cache has what all prompts begin with.
        target.server.post({**spare[-workload.turns], "max_tokens": 1})
    before = read_counters()
    sent = sender.send(
        target.server,
        phases,
        load.concurrency,
        lambda ended: progress(ended, total),
        workload.turns,
        workload.think_seconds,
        spare,
    )
    after = read_counters()
    counted = after.since(before) if before is not None and after is not None else None
    return evaluate(target, load, sent, counted)


def evaluate(
    target: BenchTarget, load: BenchLoad, sent: Sent, counted: Counters | None
) -> BenchRow:
    """The row of a load that was sent, without its prompts; where requests failed, of those before.
    Raises EngineError when no request succeeded."""
    is_conversation = load.workload.turns > 1
    groups = [
        [
            request
            for request in sent.requests
            if request.repetition == number and (request.turn or not is_conversation)
        ]
        for number in range(1, load.repetitions + 1)
    ]
    groups = [group for group in groups if any(not request.error for request in group)]
    failed = Counter(request.error for request in sent.requests if request.error)
    why = failed.most_common(1)[0][0] if failed else sent.error
    if not groups:
        raise EngineError(
            f"no request of the load succeeded: {sent.error or why or 'nothing was sent'}",
            target.server.fix,
            "load-failed",
        )
    repetitions = [_repetition(group, load) for group in groups]
    complete = [
        repetition
        for repetition in repetitions
        if not repetition.errors and repetition.requests == load.measured_requests
    ]
    good = [request for group in groups for request in group if not request.error]
    speed = ratio_interval([(each.tokens_per_second, 1.0) for each in complete or repetitions])
    assert speed is not None
    incomplete = ""
    if len(complete) < load.repetitions or failed:
        what = f"{failed.total()} requests failed" if failed else "requests are missing"
        incomplete = (
            f"{len(complete)} of {load.repetitions} repetitions are complete; {what}: {why}"
        )
    setting = target.setting
    if counted is not None and not setting.is_known:
        k = len(counted.accepted_per_position) if counted.drafts else 0
        setting = replace(setting, k=k, is_known=True)
    return BenchRow(
        setting=setting,
        load=replace(load, workload=replace(load.workload, prompts=())),
        repetitions=tuple(repetitions),
        tokens_per_second=replace(speed, low=max(speed.low, 0.0)),
        **_latencies(good),
        prompt_tokens=fmean(request.prompt_tokens or 0 for request in good),
        output_tokens=fmean(request.output_tokens or 0 for request in good),
        acceptance=acceptance_in(counted, setting) if counted else None,
        usd_per_million_tokens=usd_per_million(target.usd_per_hour, speed.value),
        incomplete=incomplete,
        cached_prompt_tokens=_cached_tokens(load, sent, counted) if counted else None,
        first_turn_ttft=summarize_times(
            request.ttft
            for request in sent.requests
            if is_conversation and request.repetition and not request.turn and request.ttft
        ),
        max_cudagraph_capture_size=target.max_cudagraph_capture_size,
    )


def _cached_tokens(load: BenchLoad, sent: Sent, counted: Counters) -> float | None:
    """The tokens of a measured prompt that were hits. The counters are of all turns and of the
    warm-up; the first turns of conversations hit what all share."""
    if counted.cache_hits is None:
        return None
    answered = [request for request in sent.requests if not request.error]
    measured = [request for request in answered if request.turn or load.workload.turns == 1]
    shared = load.workload.size.shared_prompt_tokens * (len(answered) - len(measured))
    return max(counted.cache_hits - shared, 0) / max(len(measured), 1)


def _repetition(requests: Sequence[SentRequest], load: BenchLoad) -> Repetition:
    good = [request for request in requests if not request.error]
    start, end = min(request.start for request in requests), max(request.end for request in good)
    times = summarize_times(request.end - request.start for request in good)
    assert times is not None
    seconds = end - start
    if load.workload.turns > 1:
        seconds = len(good) * (times.mean + load.workload.think_seconds) / load.concurrency
    return Repetition(
        seconds=max(seconds, 1e-9),
        requests=len(requests),
        output_tokens=sum(request.output_tokens or 0 for request in good),
        prompt_tokens=sum(request.prompt_tokens or 0 for request in good),
        **_latencies(good),
        request_seconds=times,
        errors=tuple(request.error for request in requests if request.error),
    )


def _latencies(good: Sequence[SentRequest]) -> dict[str, Any]:
    """TTFT, ITL per output, and the time per token after the first, of requests that succeeded. The
    first output counts as one token."""
    return {
        "ttft": summarize_times(request.ttft for request in good if request.ttft is not None),
        "itl": summarize_times(gap for request in good for gap in request.gaps),
        "tpot": summarize_times(
            sum(request.gaps) / (request.output_tokens - 1)
            for request in good
            if request.gaps and request.output_tokens and request.output_tokens > 1
        ),
    }


def summarize_times(times: Iterable[float]) -> Times | None:
    """Mean and percentiles; ``None`` without a value."""
    values = list(times)
    if not values:
        return None
    several = values if len(values) > 1 else [*values, *values]
    cuts = statistics.quantiles(several, n=100, method="inclusive")
    return Times(fmean(values), cuts[49], cuts[89], cuts[98], len(values))
