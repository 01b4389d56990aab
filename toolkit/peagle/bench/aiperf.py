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

from peagle.bench.targets import ANSWER_SECONDS, OpenAiServer
from peagle.data import data_folder
from peagle.engine.install import Environment, check_environment, exclusive_environment
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


def install_sender(
    python: Path | None = None, again: bool = False, progress: Progress = lambda line: None
) -> Aiperf:
    """Install aiperf unless it is installed; with ``again`` in any case. ``python`` runs it, by
    default this program's. Raises UserError for an unsuitable Python or disk, and EngineError when
    uv or aiperf fails."""
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
            files = (path for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
            marker = {
                "aiperf": AIPERF,
                "lock": _digest(),
                "megabytes": round(sum(path.stat().st_size for path in files) / 1e6),
                "seconds": round(time.monotonic() - started, 1),
            }
            write_json(folder / _MARKER, marker)
    return find_sender()


def installed_sender() -> Aiperf | None:
    """The installation from this toolkit's lock file; ``None`` without one, or with another's."""
    program = _folder() / "bin" / "aiperf"
    with suppress(ValueError, TypeError, KeyError):
        marker = read_json(_folder() / _MARKER)
        if marker["lock"] == _digest() and program.exists():
            return Aiperf(program, AIPERF, marker["megabytes"], marker["seconds"])
    return None


def find_sender() -> Aiperf:
    """The installation. Raises SenderMissing with the command that installs it."""
    installation = installed_sender()
    if installation is None:
        message = f"the load generator aiperf {AIPERF} is not installed on this machine"
        raise SenderMissing(message, Fix("install it", ("peagle", "bench", "install")))
    return installation


def _folder() -> Path:
    return home() / "engines" / f"aiperf-{AIPERF}"


def _lock() -> Path:
    return data_folder("requirements") / "aiperf.txt"


def _digest() -> str:
    return hashlib.sha256(_lock().read_bytes()).hexdigest()


Body = Mapping[str, Any]
"""A complete request body; it asks for a stream with token counts."""


@dataclass(frozen=True)
class SentRequest:
    """One request as the sender timed it, in seconds since 1970 and until the first output;
    ``gaps`` are between outputs. ``repetition`` counts from 1; 0 is the warm-up. The server counts
    the tokens. With an ``error``, other values may be missing."""

    repetition: int
    start: float
    end: float
    ttft: float | None = None
    gaps: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


@dataclass(frozen=True)
class CpuReading:
    """Until ``at``, in seconds since 1970, and from the reading before: the share of one CPU that
    the busiest process of the sender used, and the share of all CPUs of this machine that were
    busy, by any process."""

    at: float
    sender: float
    machine: float


@dataclass(frozen=True)
class Sent:
    """All requests of a load, also of one that ended early: ``error`` is then why."""

    requests: tuple[SentRequest, ...]
    cpu: tuple[CpuReading, ...] = ()
    error: str = ""


_KEY = "PEAGLE_BENCH_KEY"
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

_PHASE = "load"
"""The phases are called ``load0``, ``load1``, ...; the first is the warm-up."""

_LONGEST = 300
_CUT_OFF = "the server closed the connection before the end of an answer"
_MESSAGES = {
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

Fix: correct what the message names, or install the load generator again with --again
"""


@dataclass(frozen=True)
class Aiperf:
    """aiperf as installed: its program, and the size and the time that installing it took. It sends
    requests, so many at a time, and times their outputs."""

    program: Path
    version: str
    megabytes: int
    seconds: float

    def send(
        self,
        server: OpenAiServer,
        phases: Sequence[Sequence[Body]],
        concurrency: int,
        progress: Callable[[int], object] = lambda finished: None,
    ) -> Sent:
        """Send the bodies of each phase, the warm-up first; a phase begins when the previous one
        has ended. ``progress`` receives the number of finished requests. Requests that fail are
        results. Raises EngineError when aiperf fails before it sends anything."""
        with tempfile.TemporaryDirectory(prefix="peagle-bench-") as name:
            folder = Path(name)
            (folder / "tokenizer").mkdir()
            for file, content in _TOKENIZER.items():
                (folder / "tokenizer" / file).write_text(json.dumps(content), encoding="utf-8")
            with (folder / "bodies.jsonl").open("w", encoding="utf-8") as stream:
                for bodies in phases:
                    stream.writelines(json.dumps(body) + "\n" for body in bodies)
            config = configuration(folder, server, [len(bodies) for bodies in phases], concurrency)
            (folder / "load.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
            records = folder / "out" / "profile_export.jsonl"
            cpu = _run(self.program, folder, server.key, records, progress)
            lines = records.read_bytes().splitlines(keepends=True) if records.exists() else []
            requests = tuple(requests_in(lines))
            log = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
            errors = [line for line in log if " ERROR " in line or "Error:" in line]
            last_error = (errors or log or ["no output"])[-1].strip()[:_LONGEST]
            if not requests:
                raise EngineError(f"aiperf sent nothing: {last_error}", code=_SENDER_FAILED)
            expected = sum(map(len, phases))
            missing = expected - len(requests)
            left_out = f"aiperf left out {missing} of {expected} requests: {last_error}"
            return Sent(requests, cpu, left_out if missing else "")


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
    return {
        "benchmark": {
            "models": [server.model],
            "endpoint": endpoint,
            "tokenizer": {"name": str(folder / "tokenizer")},
            "datasets": [
                {"name": "bodies", "type": "file", "path": str(folder / "bodies.jsonl"),
                 "format": "raw_payload", "sampling": "sequential"}
            ],
            "phases": [
                {
                    "name": f"{_PHASE}{number}",
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


def _run(
    program: Path, folder: Path, key: str | None, records: Path, progress: Callable[[int], object]
) -> tuple[CpuReading, ...]:
    """Run aiperf to its end, with the use of the CPUs meanwhile; an interrupt ends its processes
    too."""
    environment = {
        name: os.environ[name]
        for name in ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR")
        if name in os.environ
    }
    # Its cache of prepared data and all else it writes belong to this load.
    environment |= {"HOME": str(folder), "NO_COLOR": "1"} | ({_KEY: key} if key else {})
    command = [str(program), "profile", "--config", str(folder / "load.yaml")]
    readings: list[CpuReading] = []
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment
        ) as started,
    ):
        try:
            before: dict[int, float] = {}
            begun, offset, finished = time.time(), 0, 0
            psutil.cpu_percent()
            while started.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    started.wait(0.2)
                now, used = time.time(), {}
                for process in _processes(started.pid):
                    with suppress(psutil.Error):
                        used[process.pid] = sum(process.cpu_times()[:2])
                busiest = max((used[pid] - before.get(pid, 0.0) for pid in used), default=0.0)
                share = busiest / max(now - begun, 1e-9)
                readings.append(CpuReading(now, share, psutil.cpu_percent() / 100))
                before, begun = used, now
                if records.exists():
                    with records.open("rb") as stream:
                        stream.seek(offset)
                        written = stream.read()
                    offset, finished = offset + len(written), finished + written.count(b"\n")
                progress(finished)
        except BaseException:
            processes = _processes(started.pid)
            started.terminate()
            for process in psutil.wait_procs(processes, timeout=15.0)[1]:
                with suppress(psutil.Error):
                    process.kill()
            raise
    return tuple(readings)


def _processes(leader: int) -> list[psutil.Process]:
    """A process and its descendants; none once it has ended."""
    with suppress(psutil.Error):
        top = psutil.Process(leader)
        return [top, *top.children(recursive=True)]
    return []


def requests_in(lines: Iterable[bytes]) -> Iterator[SentRequest]:
    """The requests of these lines. A line that is cut off, as of an aiperf that was killed, is
    ignored. Raises EngineError for another format."""
    for line in lines:
        try:
            document = json_reader.read(line, "a record of aiperf", limits=Limits(size=64 << 20))
        except InvalidJson as error:
            if error.is_syntax and not line.endswith(b"\n"):
                return
            raise EngineError(f"{error}", code="invalid-response") from error
        with parsing("a record of aiperf", EngineError):
            yield _request(document)


def _request(document: Mapping[str, Any]) -> SentRequest:
    metadata, metrics = document["metadata"], document["metrics"]
    repetition = count_of(int(metadata["phase_name"].removeprefix(_PHASE)))
    start, end = (_seconds(metadata[f"request_{at}_ns"], 1e9) for at in ("start", "end"))
    if error := document.get("error"):
        return SentRequest(repetition, start, end, error=_message(error))
    written = metrics.get("usage_completion_tokens", {}).get("value")
    if not written or "time_to_first_token" not in metrics:
        # vLLM reports an error after the first output as an event of the stream.
        why = "the answer ended early, or without its number of tokens"
        return SentRequest(repetition, start, end, error=why)
    prompt = metrics.get("usage_prompt_tokens")
    gaps = metrics.get("inter_chunk_latency", {}).get("value", ())
    return SentRequest(
        repetition,
        start,
        end,
        _seconds(metrics["time_to_first_token"]["value"], 1e3),
        tuple(_seconds(gap, 1e3) for gap in gaps),
        count_of(prompt["value"]) if prompt else None,
        count_of(written),
    )


def _seconds(value: Any, per_second: float) -> float:
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise ValueError(f"{ascii(value)[:40]} is not a time")
    return float(value) / per_second


def _message(error: Any) -> str:
    """The engine's own message, or aiperf's without its internals."""
    if not isinstance(error, dict):
        return sanitize(error, _LONGEST)
    text = str(error.get("message") or error.get("type") or "the request failed")
    if error.get("code"):
        return sanitize(f"HTTP {error['code']}: {engine_message(text)}", _LONGEST)
    return _MESSAGES.get(str(error.get("type"))) or sanitize(text, _LONGEST)
