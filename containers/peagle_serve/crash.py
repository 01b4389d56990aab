"""Why an engine ended: the deciding line of its output, the cause code and the fix.

The patterns of ``crashes.json`` match real messages of this entrypoint, vLLM, torch, CUDA and the
Hub. The toolkit uses them for the logs of other containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from peagle_serve.json_reader import read_file
from peagle_serve.logs import without_colors


class Crash(NamedTuple):
    """The deciding line without vLLM's prefix, the fix, the cause code ("" if unknown), and where
    one exists the command of the fix as argv."""

    line: str
    fix: str = ""
    cause: str = ""
    command: tuple[str, ...] = ()


CAUSES = tuple(
    (row["pattern"], Crash("", row["fix"], row["cause"], tuple(row.get("command", ()))))
    for row in read_file(Path(__file__).with_name("crashes.json"))
)
"""The patterns of the lines that show a cause, and the cause, in the order of their search."""
KILLED = next(crash for _, crash in CAUSES if crash.cause == "killed")

_KILLED = re.compile(
    r"^(\S+: line \d+: +\d+ )?Killed\b|Out of memory: Killed process|OOM ?Killed|oom-kill"
    r"|(exit(ed|s)?|exit[ _-]?code|status|code)\W{1,4}(with )?(exit )?(code |status )?\W*(137|-9)\b"
    r"|(killed|terminated|died|ended) (by|with) (signal )?(9\b|-9\b|SIGKILL)|signal: killed"
    r"|\(signal 9\)|Signal 9 \(SIGKILL\)|core proc\(s\): \{[^}]*: -9\b",
    re.IGNORECASE,
)
"""What shells, Docker, Kubernetes, torch and vLLM say of a process that the kernel has killed."""
_LEAD = re.compile(r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:Z+-]* +)?(\[rank\d+\]: ?)?")
"""What Docker, Kubernetes and CloudWatch (a time) and torch (the rank) write before a line."""
_PREFIX = re.compile(
    r"^(\([A-Z]\w*(?: pid=\d+)?\)\s*)*((DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(\d\d-\d\d \d\d:\d\d:\d\d )?(\[[^\]]*\] ?)?)?"
)
_IGNORED = re.compile(r"^(\([A-Z]\w*(?: pid=\d+)?\)\s*)*(DEBUG|INFO|WARNING)\b")
_MESSAGE = re.compile(
    r"^(?:[\w.]*(?:Error|Exception)(?:: |$)|botocore\.\S+: |(?:vllm serve|[\w.]+): error: "
    r"|Access to model |Re(?:pository|vision) Not Found |Fatal Python error|terminate called"
    r"|.*error while loading shared libraries"
    r"|.*\bexec\b.*(not found|[Nn]o such file|permission denied|format error)"
    r"|(\S+: )*(line \d+: )*(\d+: )?(exec: )?(\S*/)?(serve|vllm): "
    r"((command )?not found|[Pp]ermission denied)|.*NCCL WARN |!+ Segfault encountered)"
)
_END_OF_MESSAGE = re.compile(
    r"^(Traceback|File |During handling|The above exception|For further|Process \w+:"
    r"|Error retrieving )"
)
_NOT_THE_CAUSE = re.compile(
    r"See root cause above|EngineDeadError|leaked \w+ objects|warnings\.warn|resource_tracker"
    r"|WorkerProc (initialization failed|hit an exception)|Worker failed with error"
    r"|[Pp]roc \S+ died unexpectedly|(EngineCore|WorkerProc) failed to start"
)
_PROCESS = re.compile(r"^\([A-Z]\w*")
_BARE_EXCEPTION = re.compile(r"^\w+(Error|Exception)$")
_HUB_ERROR = re.compile(r"\d{3} Client Error")
"""Its details follow after a blank line."""
_VALIDATION = re.compile(r"^pydantic_core\S*: \d+ validation errors? for ")
_PYDANTIC_DETAIL = re.compile(r" \[type=\w+, input_value=(.*?), input_type=(\w+)\]")
_SIMPLE_TYPES = ("str", "int", "float", "bool", "NoneType")
_FOLLOWING_LINES = 2
_LONGEST = 300


def parse_crash(lines: Iterable[str]) -> Crash:
    """The first message with a known cause; else that a process was killed; else the last message.
    A message is an exception, or an error of a command line, with the lines that belong to it. A
    core that ended without one was killed; then the server's messages are of earlier requests."""
    written = [_LEAD.sub("", without_colors(line)) for line in lines]
    core_ended = any("engine core exited unexpectedly" in line for line in written)
    kept = [line for line in written if not _IGNORED.match(line)]
    writers = [match[0] if (match := _PROCESS.match(line)) else "" for line in kept]
    parsed = [(writer, bare_line(line)) for writer, line in zip(writers, kept, strict=True)]
    parsed = [(writer, text) for writer, text in parsed if not _NOT_THE_CAUSE.search(text)]
    messages = [
        _message(parsed, number)
        for number, (writer, text) in enumerate(parsed)
        if _MESSAGE.match(text) and not (core_ended and writer == "(APIServer")
    ]
    for message in messages:
        for pattern, crash in CAUSES:
            if re.search(pattern, message):
                return crash._replace(line=_readable(message))
    for line in kept:
        if _KILLED.search(bare_line(line)):
            return KILLED._replace(line=_readable(bare_line(line)))
    if core_ended and not messages:
        return KILLED._replace(line="the engine core was killed (signal 9)")
    return Crash(_readable(messages[-1])) if messages else Crash("")


def bare_line(line: str) -> str:
    """A line of vLLM's log without colours, process, level, date and source."""
    return _PREFIX.sub("", _LEAD.sub("", without_colors(line))).strip()


def _message(lines: list[tuple[str, str]], number: int) -> str:
    """The message that begins with this line, and the lines of its process that belong to it."""
    writer, first = lines[number]
    message = [first]
    if _BARE_EXCEPTION.match(first):  # the code says more, as of ``assert``
        before = (text for _, text in reversed(lines[:number]) if text.strip("^~ "))
        code = next(before, "")
        if code.startswith(("assert ", "raise ")):
            message = [f"{first}: {code}"]
    for process, text in lines[number + 1 :]:
        if not text and _HUB_ERROR.search(first):
            continue
        ends = not text or _MESSAGE.match(text) or _END_OF_MESSAGE.match(text)
        if ends or process != writer or len(message) > _FOLLOWING_LINES:
            break
        message.append(text)
    return " ".join(message)


def _readable(message: str) -> str:
    """Without pydantic's details, and at most a few lines long."""
    # The value that pydantic rejected stays, if it is simple.
    plain = _PYDANTIC_DETAIL.sub(
        lambda detail: f", not {detail[1]}" if detail[2] in _SIMPLE_TYPES else "",
        _VALIDATION.sub("", message),
    )
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST // 2]} ... {plain[-100:]}"
