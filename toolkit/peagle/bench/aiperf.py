"""NVIDIA's aiperf sends the load: JSON in, JSON lines out, one process per load.

It is installed from a lock file in an environment of its own, and shares no package with the
toolkit or the engine. It gets complete request bodies, so it needs no tokenizer; since it loads one
all the same, it gets one of two words. The server counts all tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import psutil

from peagle.bench.server import ANSWER_SECONDS, OpenAiServer
from peagle.data import data_folder
from peagle.engine.environment import Environment, check_environment, exclusive_environment
from peagle.errors import EngineError, Fix, UserError, count_of, parsing
from peagle.images.docker import Progress
from peagle.protocol import engine_message
from peagle.store import home, read_json, write_json
from peagle.text import sanitize
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits

AIPERF = "0.13.0"
"""The version in the lock file."""

NEEDED_BYTES = 2**30
"""Disk space for the environment and for unpacking."""

_MARKER = "aiperf.json"
"""The last file of an installation."""


class SenderMissing(UserError, code="bench-missing"):
    """The load generator is not installed on this machine."""


@dataclass(frozen=True)
class Installation:
    """aiperf as installed: its program, and the size and the time that installing it took."""

    program: Path
    version: str
    megabytes: int
    seconds: float


def install_sender(
    python: Path | None = None, again: bool = False, progress: Progress = lambda line: None
) -> Installation:
    """Install aiperf unless it is installed; with ``again`` in any case.

    ``python`` runs it; by default the Python of this program. Raises UserError for an unsuitable
    Python or disk, and EngineError when uv or aiperf fails.
    """
    folder = _folder()
    with exclusive_environment(folder, progress):
        if again or installed_sender() is None:
            python = python or Path(sys.executable)
            check_environment(python, folder, NEEDED_BYTES, "aiperf")
            started = time.monotonic()
            environment = Environment(folder, python, progress)
            environment.install(_lock())
            progress("checking that it can be imported")
            environment.check_import("import aiperf.cli")
            marker = {
                "aiperf": AIPERF,
                "lock": _digest(),
                "megabytes": round(_bytes(folder) / 1e6),
                "seconds": round(time.monotonic() - started, 1),
            }
            write_json(folder / _MARKER, marker)
    return find_sender()


def installed_sender() -> Installation | None:
    """The installation from this toolkit's lock file; ``None`` without one, or with another's."""
    folder = _folder()
    try:
        marker = read_json(folder / _MARKER)
    except ValueError:
        return None
    program = folder / "bin" / "aiperf"
    if not isinstance(marker, dict) or marker.get("lock") != _digest() or not program.exists():
        return None
    size, seconds = marker.get("megabytes"), marker.get("seconds")
    return Installation(
        program,
        AIPERF,
        size if isinstance(size, int) else 0,
        seconds if isinstance(seconds, float | int) else 0.0,
    )


def find_sender() -> Installation:
    """The installation. Raises SenderMissing with the command that installs it."""
    found = installed_sender()
    if found is None:
        message = f"the load generator aiperf {AIPERF} is not installed on this machine"
        raise SenderMissing(message, Fix("install it", ("peagle", "bench", "install")))
    return found


def _folder() -> Path:
    return home() / "engines" / f"aiperf-{AIPERF}"


def _lock() -> Path:
    return data_folder("requirements") / "aiperf.txt"


def _digest() -> str:
    return hashlib.sha256(_lock().read_bytes()).hexdigest()


def _bytes(folder: Path) -> int:
    """The size of the files, without links to files elsewhere."""
    files = (path for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
    return sum(path.stat().st_size for path in files)


Body = Mapping[str, Any]
"""A complete request body; it asks for a stream with token counts."""


@dataclass(frozen=True)
class SentRequest:
    """One request as the sender timed it.

    ``repetition`` counts from 1; 0 is the warm-up. ``start`` and ``end`` are in seconds since 1970,
    ``ttft`` until the first output; ``gaps`` are between outputs. The server counts the tokens.
    ``error`` is the message of a failed request, whose other values may be missing.
    """

    repetition: int
    start: float
    end: float
    ttft: float | None = None
    gaps: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Sent:
    """All requests of a load, also of one that ended early: ``error`` is then why.

    ``cpu`` are pairs of a time in seconds since 1970 and the CPU seconds that each process of the
    sender has used until then, by its id. ``machine`` are such times with the busy and with all CPU
    seconds of this machine.
    """

    requests: tuple[SentRequest, ...]
    cpu: tuple[tuple[float, Mapping[int, float]], ...] = ()
    machine: tuple[tuple[float, float, float], ...] = ()
    error: str = ""


def busiest_share(sent: Sent, start: float, end: float) -> float | None:
    """The share of one CPU that the busiest process of the sender used between two times, for a
    shorter time than between readings by those around it; ``None`` without them."""
    inside = [reading for reading in sent.cpu if start <= reading[0] <= end]
    if len(inside) < 2:
        earlier = [reading for reading in sent.cpu if reading[0] < start][-1:]
        inside = earlier + inside + [reading for reading in sent.cpu if reading[0] > end][:1]
    if len(inside) < 2:
        return None
    (first, before), (last, after) = inside[0], inside[-1]
    if last <= first:
        return None
    used = (seconds - before.get(process, 0.0) for process, seconds in after.items())
    return max(used, default=0.0) / (last - first)


def machine_share(sent: Sent, start: float, end: float) -> float | None:
    """The share of this machine's CPUs that were busy between two times, by any process; ``None``
    with fewer than two readings in between."""
    inside = [reading for reading in sent.machine if start <= reading[0] <= end]
    if len(inside) < 2:
        return None
    (_, busy, total), (_, later_busy, later_total) = inside[0], inside[-1]
    return (later_busy - busy) / (later_total - total) if later_total > total else None


_KEY = "PEAGLE_BENCH_KEY"
_INHERITED = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR")
_READ_EVERY = 0.2
_END_SECONDS = 15.0
_TOKENIZER = {
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"},
    },
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "[UNK]",
    },
}

PHASE = "load"
"""The phases are called ``load0``, ``load1``, ...; the first is the warm-up."""

_LIMITS = Limits(size=64 << 20, depth=16, values=2_000_000)
_LONGEST = 300
_CUT_OFF = "the server closed the connection before the end of an answer"
_KNOWN = {
    "ClientConnectorError": "the server refuses the connection",
    "ClientOSError": _CUT_OFF,
    "ClientPayloadError": _CUT_OFF,
    "InvalidInferenceResultError": "the server sent no text",
    "ServerDisconnectedError": _CUT_OFF,
    "RequestTimeoutError": "the answer took too long",
    "TimeoutError": "the answer took too long",
}
"""aiperf's names of errors without a status -> what has happened."""

_SENDER_FAILED = "sender-failed"
"""The load generator ended before it sent a request; the message has its last error.

Fix: correct what the message names, or install the load generator again with --reinstall
"""


@dataclass(frozen=True)
class Aiperf:
    """Sends requests with an installed aiperf, so many at a time, and times their outputs."""

    installed: Installation

    @property
    def identity(self) -> tuple[str, str]:
        """Name and version."""
        return "aiperf", self.installed.version

    def send(
        self,
        server: OpenAiServer,
        phases: Sequence[Sequence[Body]],
        concurrency: int,
        progress: Callable[[int], object] = lambda finished: None,
    ) -> Sent:
        """Send the bodies of each phase, the warm-up first; a phase begins when the previous one
        has ended.

        ``progress`` receives the number of finished requests. Requests that fail are results. An
        interrupt ends aiperf too. Raises EngineError when aiperf fails before it sends anything.
        """
        with tempfile.TemporaryDirectory(prefix="peagle-bench-") as name:
            folder = Path(name)
            _write_inputs(folder, server, phases, concurrency)
            records = folder / "out" / "profile_export.jsonl"
            cpu = _CpuReadings()
            _run(self.installed.program, folder, server.key, _LineCount(records), progress, cpu)
            requests = tuple(requests_in(_lines(records)))
            if not requests:
                raise EngineError(
                    f"aiperf sent nothing: {_last_error(folder / 'log')}", code=_SENDER_FAILED
                )
            expected = sum(map(len, phases))
            error = _why_incomplete(requests, expected, folder / "log")
            return Sent(requests, tuple(cpu.sender), tuple(cpu.machine), error)


def load_sender() -> Aiperf:
    """The installed sender. Raises SenderMissing."""
    return Aiperf(find_sender())


def _write_inputs(
    folder: Path, server: OpenAiServer, phases: Sequence[Sequence[Body]], concurrency: int
) -> None:
    (folder / "tokenizer").mkdir()
    for name, content in _TOKENIZER.items():
        (folder / "tokenizer" / name).write_text(json.dumps(content), encoding="utf-8")
    with (folder / "bodies.jsonl").open("w", encoding="utf-8") as stream:
        for bodies in phases:
            stream.writelines(json.dumps(body) + "\n" for body in bodies)
    config = configuration(folder, server, [len(bodies) for bodies in phases], concurrency)
    (folder / "load.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML


def configuration(
    folder: Path, server: OpenAiServer, counts: Sequence[int], concurrency: int
) -> dict[str, Any]:
    """aiperf's configuration. The bodies are sent in the order of the file, through all phases."""
    endpoint: dict[str, Any] = {
        "urls": [server.base_url.removesuffix("/v1")],
        "type": "chat" if server.chat else "completions",
        "streaming": True,
        "use_server_token_count": True,
        "timeout": ANSWER_SECONDS,
    }
    if server.key:
        endpoint["api_key"] = f"${{{_KEY}}}"  # aiperf takes it from the environment
    bodies = str(folder / "bodies.jsonl")
    return {
        "benchmark": {
            "models": [server.model],
            "endpoint": endpoint,
            "tokenizer": {"name": str(folder / "tokenizer")},
            "datasets": [
                {"name": "bodies", "type": "file", "path": bodies, "format": "raw_payload",
                 "sampling": "sequential"}
            ],
            "phases": [
                {
                    "name": f"{PHASE}{number}",
                    "kind": "profiling" if number else "warmup",
                    "type": "concurrency",
                    "requests": count,
                    "concurrency": min(concurrency, count),
                }
                for number, count in enumerate(counts)
            ],
            "artifacts": {"dir": str(folder / "out"), "records": ["jsonl"], "auto_plot": False},
            "gpu_telemetry": {"enabled": False},
            "server_metrics": {"enabled": False},
            "runtime": {"ui": "none"},
        }
    }  # fmt: skip


class _CpuReadings:
    """CPU times of the sender's processes and of this machine, read now and then."""

    def __init__(self) -> None:
        self.sender: list[tuple[float, Mapping[int, float]]] = []
        self.machine: list[tuple[float, float, float]] = []

    def read(self, leader: int) -> None:
        """Add the times of the process ``leader`` with its descendants, and of the machine."""
        now, times = time.time(), psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0) - getattr(times, "guest_nice", 0)
        idle = times.idle + getattr(times, "iowait", 0)
        self.sender.append((now, _cpu_seconds(leader)))
        self.machine.append((now, total - idle, total))


def _run(
    program: Path,
    folder: Path,
    key: str | None,
    finished: _LineCount,
    progress: Callable[[int], object],
    cpu: _CpuReadings,
) -> None:
    """Run aiperf to its end and read the CPU times meanwhile."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # Its cache of prepared data and all else it writes belong to this load.
    environment |= {"HOME": str(folder), "NO_COLOR": "1"} | ({_KEY: key} if key else {})
    command = [str(program), "profile", "--config", str(folder / "load.yaml")]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment
        ) as started,
    ):
        try:
            while started.poll() is None:
                cpu.read(started.pid)
                progress(finished.now())
                with suppress(subprocess.TimeoutExpired):
                    started.wait(_READ_EVERY)
        except BaseException:
            _end(started)
            raise


def _cpu_seconds(leader: int) -> dict[int, float]:
    """CPU seconds of a process and its descendants, by process id."""
    found: dict[int, float] = {}
    with suppress(psutil.Error):
        top = psutil.Process(leader)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
    return found


def _end(started: subprocess.Popen[bytes]) -> None:
    """End aiperf and the processes that it has started."""
    members: list[psutil.Process] = []
    with suppress(psutil.Error):
        top = psutil.Process(started.pid)
        members = [top, *top.children(recursive=True)]
    started.terminate()
    _, alive = psutil.wait_procs(members, timeout=_END_SECONDS)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()


class _LineCount:
    """The number of lines of a growing file, each of which is read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._lines = path, 0, 0

    def now(self) -> int:
        with suppress(FileNotFoundError), self._path.open("rb") as stream:
            stream.seek(self._offset)
            while chunk := stream.read(1 << 20):
                self._offset += len(chunk)
                self._lines += chunk.count(b"\n")
        return self._lines


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _why_incomplete(requests: Sequence[SentRequest], expected: int, log: Path) -> str:
    """Why fewer requests than expected have ended; empty if none is missing."""
    missing = expected - len(requests)
    return (
        f"aiperf left out {missing} of {expected} requests: {_last_error(log)}" if missing else ""
    )


def _last_error(log: Path) -> str:
    """The last line about an error in aiperf's output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if " ERROR " in line or "Error:" in line]
    return (errors or lines or ["no output"])[-1].strip()[:300]


def requests_in(lines: Iterable[bytes]) -> Iterator[SentRequest]:
    """The requests of these lines, in their order.

    A line that is cut off, as of an aiperf that was killed, is ignored. Raises EngineError for
    another format.
    """
    for line in lines:
        try:
            document = json_reader.read(line, "a record of aiperf", limits=_LIMITS)
        except InvalidJson as error:
            if error.is_syntax and not line.endswith(b"\n"):
                return
            raise EngineError(f"{error}", code="invalid-response") from error
        with parsing("a record of aiperf", EngineError):
            yield _request(document)


def _request(document: Mapping[str, Any]) -> SentRequest:
    metadata, metrics = document["metadata"], document["metrics"]
    name = metadata["phase_name"]
    repetition = count_of(int(name.removeprefix(PHASE)))
    start = _number(metadata["request_start_ns"]) / 1e9
    end = _number(metadata["request_end_ns"]) / 1e9
    if document.get("error"):
        return SentRequest(repetition, start, end, error=_message(document["error"]))
    output_tokens = _count(metrics, "usage_completion_tokens")
    ttft = _seconds(metrics, "time_to_first_token")
    if not output_tokens or ttft is None:
        # vLLM reports an error after the first output as an event of the stream.
        why = "the answer ended early, or without its number of tokens"
        return SentRequest(repetition, start, end, error=why)
    gaps = metrics["inter_chunk_latency"]["value"] if "inter_chunk_latency" in metrics else []
    return SentRequest(
        repetition,
        start,
        end,
        ttft,
        tuple(_number(gap) / 1e3 for gap in gaps),
        _count(metrics, "usage_prompt_tokens"),
        output_tokens,
    )


def _seconds(metrics: Mapping[str, Any], name: str) -> float | None:
    return _number(metrics[name]["value"]) / 1e3 if name in metrics else None


def _count(metrics: Mapping[str, Any], name: str) -> int | None:
    return count_of(metrics[name]["value"]) if name in metrics else None


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise ValueError(f"{ascii(value)[:40]} is not a time")
    return float(value)


def _message(error: Any) -> str:
    """The engine's own message, or aiperf's without its internals."""
    if not isinstance(error, dict):
        return sanitize(error, _LONGEST)
    text = str(error.get("message") or error.get("type") or "the request failed")
    if error.get("code"):
        return sanitize(f"HTTP {error['code']}: {engine_message(text)}", _LONGEST)
    return _KNOWN.get(str(error.get("type"))) or sanitize(text, _LONGEST)
