"""Read an engine's log: counters, throughput, the fields of container lines, and warm starts."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.errors import fix_text
from peagle.protocol import Counters
from peagle.text import json_number
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson
from peagle_serve.logs import restored_text, without_colors

_WHOLE = r"\d{1,15}"
_NUMBER = rf"{_WHOLE}(?:\.{_WHOLE})?"
_LENGTH = re.compile(rf"Mean acceptance length: ({_NUMBER})")
_ACCEPTED = re.compile(rf"\bAccepted: ({_WHOLE}) tokens")
_DRAFTED = re.compile(rf"\bDrafted: ({_WHOLE}) tokens")
_RATES = re.compile(rf"Per-position acceptance rate: ({_NUMBER}(?:, {_NUMBER})*)")
_ROUNDED = 0.0051
"""Half of the last digit that vLLM prints of a mean length, and a little for the arithmetic."""

_GENERATION = re.compile(rf"Avg generation throughput: ({_NUMBER}) tokens/s")
_RUNNING = re.compile(rf"\bRunning: ({_WHOLE}) reqs")
_WAITING = re.compile(rf"\bWaiting: ({_WHOLE}) reqs")
_HIT_RATE = re.compile(rf"(?<!External )Prefix cache hit rate: ({_NUMBER})%")
_KV_CACHE = re.compile(rf"KV cache usage: ({_NUMBER})%")
_CAPTURED = re.compile(rf"'max_cudagraph_capture_size': ({_WHOLE})")

LOG_INTERVAL_VARIABLE = "VLLM_LOG_STATS_INTERVAL"
LOG_SECONDS = 10.0
"""Seconds between two of vLLM's lines of statistics, unless the variable sets others."""
_LONGEST_LOG_SECONDS = 3600


def log_interval(environment: Mapping[str, str], default: float = LOG_SECONDS) -> float:
    """Seconds between two lines of statistics of an engine with this environment."""
    seconds = json_number(environment.get(LOG_INTERVAL_VARIABLE, ""))
    return seconds if seconds is not None and 0 < seconds < _LONGEST_LOG_SECONDS else default


def counters_in_log(line: str) -> Counters | None:
    """What an engine counted since its previous line ``SpecDecoding metrics: ...``
    (v1/spec_decode/metrics.py); ``None`` for other lines. The line lacks the number of drafts.
    Drafts of all K positions give it exactly; n-gram drafts are shorter, and then the mean length
    gives it to within its rounding."""
    if "SpecDecoding metrics:" not in line:
        return None
    line = without_colors(line)
    matches = [pattern.search(line) for pattern in (_LENGTH, _ACCEPTED, _DRAFTED)]
    if not all(matches):
        return None
    length, accepted, drafted = (float(match[1]) for match in matches if match)
    rates = _RATES.search(line)
    shares = [float(share) for share in rates[1].split(", ")] if rates else []
    full = drafted / len(shares) if shares else 0.0
    if full.is_integer() and full and abs(1 + accepted / full - length) <= _ROUNDED:
        drafts = int(full)
    else:  # what explains a mean that is rounded to 0.01
        drafts = round(accepted / (length - 1)) if length > 1 else math.ceil(full)
    return Counters(
        drafts, int(drafted), int(accepted), tuple(round(share * drafts) for share in shares)
    )


def generated_in_log(line: str) -> float | None:
    """Tokens per second that the engine generated since its previous report; ``None`` for other
    lines. An engine that drafts writes its counters directly after it."""
    match = _GENERATION.search(without_colors(line))
    return float(match[1]) if match else None


def hit_rate_in_log(line: str) -> float | None:
    """The share of the prompts' tokens that vLLM found in its prefix cache, over its last thousand
    requests (``CachingMetrics`` in v1/metrics/stats.py); ``None`` for lines without it."""
    match = _HIT_RATE.search(without_colors(line))
    return float(match[1]) / 100 if match else None


@dataclass(frozen=True)
class EngineLoad:
    """What an engine reports about its last interval: output ``tokens_per_second``, and, at its
    end, requests and the share of the KV cache in use (``None`` where the line lacks it)."""

    tokens_per_second: float
    running: int
    waiting: int
    kv_cache_share: float | None


def load_in_log(line: str) -> EngineLoad | None:
    """The load in vLLM's line of statistics; ``None`` for other lines."""
    line = without_colors(line)
    generated = generated_in_log(line)
    if generated is None:
        return None
    running, waiting = _RUNNING.search(line), _WAITING.search(line)
    cache = _KV_CACHE.search(line)
    return EngineLoad(
        generated,
        int(running[1]) if running else 0,
        int(waiting[1]) if waiting else 0,
        float(cache[1]) / 100 if cache else None,
    )


def capture_size_in(log: Path) -> int | None:
    """The tokens of the largest batch with a CUDA graph, which vLLM logs with its configuration as
    it starts: 0 without graphs; ``None`` where the log does not say it."""
    text = log.read_text("utf-8", "replace") if log.is_file() else ""
    sizes = _CAPTURED.findall(text)
    return int(sizes[-1]) if sizes else None


def log_fields(line: str) -> dict[str, Any]:
    """The fields of a line that ``peagle_serve`` wrote (its ``logs`` module lists them). Empty for
    lines of other programs. The engine's own lines have ``from`` and no ``event``."""
    if not line.startswith('{"time":'):
        return {}
    try:
        fields = json_reader.read(line, "the line")
    except InvalidJson:
        return {}
    return fields if "event" in fields or "from" in fields else {}


def command_in(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The command of a fix in a line's fields; empty where it has none, or another program wrote
    something else under that name."""
    words = fields.get("command")
    is_command = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return tuple(words) if is_command and words else ()


def log_text(line: str) -> str:
    """A line of a container's log, formatted for people; lines of other programs are unchanged
    but for their colours."""
    line = without_colors(line)
    fields = log_fields(line)
    if not fields:
        return line
    message = str(fields.get("message", ""))
    try:
        if fields.get("from") == "engine":
            process = f"({fields['process']}) " if "process" in fields else ""
            place = f"{fields['level']} [{fields['place']}] " if "place" in fields else ""
            return f"{process}{place}{message}"
        writer = "sandbox" if fields.get("from") == "sandbox" else "serve"
        who = f"{writer}: error:" if fields.get("event") == "refused" else f"{writer}:"
        fix = fix_text(str(fields.get("fix", "")), command_in(fields))
        fix = f" ({fix})" if fix else ""
        argv = f": {json.dumps(fields['argv'], ensure_ascii=False)}" if "argv" in fields else ""
        return f"{who} {message}{fix}{argv}"
    except (TypeError, KeyError):  # another program wrote it
        return line


@dataclass(frozen=True)
class WarmStart:
    """How a container started: with the artifact ``key``, or cold. ``detail`` is what
    was restored and how fast, or why nothing was; ``differences`` are those of the most similar
    artifact."""

    restored: bool
    key: str | None
    detail: str
    differences: tuple[str, ...] = ()


def warm_start_in(log: Iterable[str]) -> WarmStart | None:
    """The warm start that a container's log reports last; ``None`` where nothing could have been
    restored. ``log`` has its lines as they were written."""
    last = None
    for fields in map(log_fields, log):
        if fields.get("event") != "warm-start":
            continue
        with contextlib.suppress(TypeError, KeyError, ValueError):  # of another program
            if fields["restored"]:
                last = WarmStart(True, str(fields["key"]), restored_text(fields))
            else:
                differences = tuple(map(str, fields.get("differences") or ()))
                last = WarmStart(False, None, str(fields["reason"]), differences)
    return last
