"""The log of an engine: its lines, and why the engine ended.

The patterns of crashes are in ``peagle_serve.crash``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from peagle.engine.state import local_engine_names, log_of, read_local_engine, unknown_engine
from peagle.errors import EngineError, Fix
from peagle.protocol import log_fields, log_text
from peagle_serve import crash

_SEARCHED_BYTES = 512 * 1024
"""How much of the end of the log is searched for a crash."""

_TAIL_BYTES = 4096
_CHUNK_BYTES = 64 * 1024
_LONGEST = 100
"""The most characters of a line of progress."""

_INFORMS = re.compile(r"^(\([A-Z]\w*(?: pid=\d+)?\) )*INFO\b")
_PERCENT = re.compile(r"([A-Za-z][\w .,()/-]*?):\s+(\d{1,3})%")
"""A progress bar: ``Loading safetensors checkpoint shards:  50% Completed | 1/2``."""

_SAYS_NOTHING = re.compile(
    r"non-default args|[\u2580-\u259f]|\"(GET|POST) /|\w=|binding info|in world size"
    r"|Triton not installed"
)
"""Arguments, vLLM's logo, requests, and settings that it lists."""

_DETAILS = re.compile(r" with config:|[:,=]?\s*[\w.]*[\[{(][^\])}]{30,}|: *$")
"""Where the data of a line begins, such as all settings of the engine."""

_FOLLOW_SECONDS = 0.05


def crash_of(log: Path | str) -> crash.Crash:
    """The crash in the file ``log``; its line is "" when the engine was killed."""
    return find_crash(_last_lines(Path(log), _SEARCHED_BYTES))


def crash_error(log: Path | str) -> EngineError:
    """The error with the reason why the engine exited, and the fix."""
    found = crash_of(log)
    reason = found.line or "killed without a message, perhaps out of memory"
    fix = Fix(found.fix, found.command) if found.fix else f"read the log: {log}"
    return EngineError(f"the engine exited: {reason}", fix, "engine-exited")


def explain_crash(lines: Iterable[str]) -> tuple[str, Fix]:
    """The line of an engine's log that explains its end, and the fix."""
    found = find_crash(lines)
    return found.line, Fix(found.fix, found.command)


def find_crash(lines: Iterable[str]) -> crash.Crash:
    """The crash that ``peagle_serve`` reports last; without a report, the first message with a
    known cause, else the last message.

    The lines may come from ``peagle_serve``, from AWS's own container, or from both.
    """
    lines = list(lines)
    reports = [fields for line in lines if (fields := log_fields(line)).get("event") == "crash"]
    if reports and reports[-1].get("cause", "unknown") != "unknown":
        last = reports[-1]
        command = tuple(map(str, last.get("command") or ()))
        fix, cause = str(last.get("fix", "")), str(last["cause"])
        return crash.Crash(str(last["reason"]), fix, cause, command)
    return crash.parse_crash(log_text(line) for line in lines)


def last_line(log: Path) -> str:
    """The last line of the log that says what the engine does."""
    return next(filter(None, map(progress_line, reversed(_last_lines(log, _TAIL_BYTES)))), "")


def progress_line(line: str) -> str:
    """What a line of a starting engine's log says about its progress, as one short line; "" for
    what says nothing: arguments, tracebacks, warnings, requests."""
    fields = log_fields(line)
    if "event" in fields:
        return str(fields.get("message", ""))
    text = log_text(line)
    if percents := _PERCENT.findall(text):
        what, percent = percents[-1]
        return f"{what}: {percent}%"
    short = _DETAILS.split(crash.bare_line(text))[0].strip() if _INFORMS.match(text) else ""
    if _SAYS_NOTHING.search(short):
        return ""
    return short if len(short) <= _LONGEST else f"{short[:_LONGEST]}..."


def local_log(name: str, follow: bool = False) -> Iterator[str]:
    """The log of the engine, line by line; with ``follow`` also what it writes until it ends.

    Raises NotFound for an unknown engine.
    """
    log = log_of(name)
    if name not in local_engine_names() or not log.is_file():
        raise unknown_engine(name)
    return map(log_text, _lines(_chunks(log, name if follow else None)))


def _last_lines(log: Path, size: int) -> list[str]:
    """The lines in the last ``size`` bytes; none where there is no file."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - size))
            return stream.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _chunks(log: Path, follow: str | None) -> Iterator[bytes]:
    """The log in chunks; ``follow`` names a running engine whose new output is included."""
    with log.open("rb") as stream:
        while True:
            engine = read_local_engine(follow) if follow else None
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
            if engine is None or engine.state == "dead":
                return
            time.sleep(_FOLLOW_SECONDS)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """The text line by line, each as soon as it is complete."""
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", errors="replace") for line in complete)
    if rest:
        yield rest.decode("utf-8", errors="replace")
