"""Why an engine ended: the line of its log that decides, and what mends it.

The patterns are taken from what ``containers/serve`` and vLLM really print.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import EngineError

READ_BYTES = 512 * 1024
"""How much of the log's end is searched."""


@dataclass(frozen=True)
class Crash:
    """The deciding line, without vLLM's prefix, and how to mend it ("" if not known)."""

    line: str
    fix: str = ""


_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), fix)
    for pattern, fix in (
        (r"^serve: error: ", ""),
        (r"[Aa]ddress already in use", "choose another port, or stop what listens on this one"),
        (r"libnuma\.so\.1", "as root: apt-get install libnuma1"),
        (r"No module named '?vllm", "peagle engine install"),
        (
            r": error: (unrecognized arguments|argument |ambiguous option)",
            "mend or remove that argument",
        ),
        (
            r"greater than the derived max_model_len",
            "lower --max-model-len to what the model was made for",
        ),
        (
            r"No available memory for the cache blocks|larger than the available KV cache memory"
            r"|is needed, which is larger",
            "lower --max-model-len, or raise VLLM_CPU_KVCACHE_SPACE (GiB) where there is memory",
        ),
        (
            r"[Oo]ut of memory|OutOfMemoryError|Cannot allocate memory|[Nn]ot enough memory"
            r"|bad_alloc|DefaultCPUAllocator|less than requested memory for kv",
            "lower VLLM_CPU_KVCACHE_SPACE (GiB) or --max-model-len, or take a larger machine",
        ),
        (
            r"For parallel drafting, the draft model config must have|mask_hidden",
            "this head was not trained for parallel drafting: take a P-EAGLE head, or another "
            "drafter",
        ),
        (
            r"Tried to load weights of size|fc\.weight|mat1 and mat2 shapes cannot be multiplied"
            r"|[Ss]ize mismatch|shape mismatch|Attempted to load weight",
            "the head does not belong to this target, or its config.json is not its own",
        ),
        (r"validation errors? for SpeculativeConfig", "mend the speculative configuration"),
        (
            r"Error while deserializing header|incomplete metadata|MetadataIncompleteBuffer",
            "a file of weights was cut short: fetch it again",
        ),
        (
            r"LocalEntryNotFoundError|OfflineModeIsEnabled|is not a valid model identifier"
            r"|Repo id must be|RepositoryNotFoundError|GatedRepoError",
            "mount the weights, or let the engine download them (and give it access)",
        ),
        (
            r"Cannot find any model weights|No such file or directory"
            r"|does not appear to have a file named|backend tokenizer",
            "the model's folder is not complete: fetch it again",
        ),
        (
            r"trust_remote_code|trust-remote-code",
            "SM_VLLM_TRUST_REMOTE_CODE=true, if you trust the model's own code",
        ),
        (
            r"[Qq]uantization( method)? \S+ .*not supported|not supported for quantization",
            "this engine cannot run weights that are quantised like this",
        ),
    )
)

_PREFIX = re.compile(
    r"^(\([A-Z]\w*(?: pid=\d+)?\)\s*)*((DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d (\[[^\]]*\] ?)?)?"
)
_NO_INTEREST = re.compile(r"^(\([A-Z]\w*(?: pid=\d+)?\)\s*)*(DEBUG|INFO|WARNING)\b")
_MESSAGE = re.compile(
    r"^(?:[\w.]*(?:Error|Exception)(?:: |$)|serve: error: |[\w.]+: error: "
    r"|Fatal Python error|terminate called|.*error while loading shared libraries)"
)
_END_OF_MESSAGE = re.compile(
    r"^(Traceback|File |During handling|The above exception|For further|Process \w+:)"
)
_NOT_THE_CAUSE = re.compile(
    r"See root cause above|EngineDeadError|leaked \w+ objects|warnings\.warn|resource_tracker"
)
_VALIDATION = re.compile(r"^pydantic_core\S*: \d+ validation errors? for ")
_PYDANTIC_DETAIL = re.compile(r" \[type=\w+, input_value=(.*?), input_type=(\w+)\]")
_SIMPLE_TYPES = ("str", "int", "float", "bool", "NoneType")
_FOLLOWING_LINES = 2
_LONGEST = 300


def crash_reason(log: Path | str) -> str:
    """The line of the log that says why the engine ended; "" when it was ended from outside."""
    return crash_of(Path(log)).line


def crash_error(log: Path | str) -> EngineError:
    """The error that tells the user why the engine ended, and how to mend it."""
    crash = crash_of(Path(log))
    said = (
        f": {crash.line}" if crash.line else " without a word: killed, perhaps for want of memory"
    )
    return EngineError(f"the engine ended{said}", crash.fix or f"the whole log: {log}")


def crash_of(log: Path) -> Crash:
    """The crash as the file ``log`` tells it."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - READ_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return Crash("")
    return find_crash(text.splitlines())


def find_crash(lines: Iterable[str]) -> Crash:
    """The first message with a known cause; else the last message.

    A message is an exception, or an error of a command line, with the lines that belong to it.
    """
    told = [bare_line(line) for line in lines if not _NO_INTEREST.match(line)]
    told = [line for line in told if not _NOT_THE_CAUSE.search(line)]
    messages = list(_messages(told))
    for message in messages:
        for pattern, fix in _KNOWN:
            if pattern.search(message):
                return Crash(_readable(message), fix)
    return Crash(_readable(messages[-1])) if messages else Crash("")


def bare_line(line: str) -> str:
    """A line of vLLM's log without process, level, date and place."""
    return _PREFIX.sub("", line).strip()


def _messages(lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if not _MESSAGE.match(line):
            continue
        parts = [line]
        for following in lines[number + 1 : number + 1 + _FOLLOWING_LINES]:
            if not following or _MESSAGE.match(following) or _END_OF_MESSAGE.match(following):
                break
            parts.append(following)
        yield " ".join(parts)


def _readable(message: str) -> str:
    """Without the parts that are for programmers, and not longer than a few lines."""
    plain = _PYDANTIC_DETAIL.sub(_input, _VALIDATION.sub("", message))
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST // 2]} ... {plain[-100:]}"


def _input(detail: re.Match[str]) -> str:
    """The value that pydantic refused, if a person could have written it."""
    return f", not {detail[1]}" if detail[2] in _SIMPLE_TYPES else ""
