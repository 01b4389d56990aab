"""What the logs of vLLM and of the container report about a start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_MEMORY_LINES = re.compile(
    r"GiB|MiB|KV cache size|Maximum concurrency|backend|padding layers|[Mm]xfp4|MXFP4|model runner"
    r"|Model Runner|max_num_scheduled_tokens|Defaulting|Raising|Sharing|Keeping separate"
    r"|cudagraph|CUDA graph|capture|Asynchronous|compil|took"
)

_NUMBERS = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "activations_gib": r"([\d.]+) GiB for peak activation",
    "non_torch_gib": r"([\d.]+) GiB for non-torch memory",
    "cuda_graphs_estimated_gib": r"Estimated CUDA graph memory: ([\d.]+) GiB",
    "cuda_graphs_gib": r"Graph capturing finished in [\d.]+ secs, took ([\d.]+) GiB",
    "available_kv_cache_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "kv_cache_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "max_concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
    "graph_capture_seconds": r"Graph capturing finished in ([\d.]+) secs",
    "engine_start_seconds": r"init engine .*? took ([\d.]+) s",
}


def engine_numbers(text: str) -> dict[str, Any]:
    """The engine's own numbers about memory and start-up, and whether it found compiled code."""
    matches = {key: re.search(pattern, text) for key, pattern in _NUMBERS.items()}
    numbers: dict[str, Any] = {
        key: float(match[1].replace(",", "")) for key, match in matches.items() if match
    }
    if "AOT compil" in text:
        numbers["compiled_before"] = "saved AOT compiled function" not in text
    if match := re.search(r"Profiling CUDA graph memory: (.*)", text):
        numbers["graphs"] = match[1]
    return numbers


def without_folders(line: str) -> str:
    """The line with every path shortened to its last component."""
    return re.sub(r"/(?:[\w.+-]+/)+", "", line)


def memory_lines(text: str) -> list[str]:
    """The log lines about memory and what determines it, without folders; at most 120."""
    lines = [line for line in text.splitlines() if _MEMORY_LINES.search(line)]
    lines = [line for line in lines if not line.startswith("DEBUG") or re.search("[GM]iB", line)]
    short = [re.sub(r"^.*?\] ", "", line)[:400] for line in lines]
    short = [without_folders(line) for line in short]
    kept = [line for line in short if not re.search("Initializing a V1|init_method", line)]
    return list(dict.fromkeys(kept))[:120]


_START_LINES = re.compile(r"\btook\b|[Cc]ompil|[Cc]aptur|KV cache size|Loading|[Dd]irectly load")


def start_facts(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Durations of a container's start, in seconds, and the log lines about it.

    ``log`` are the entries of the container's log, vLLM's lines among them.
    """
    text = "\n".join(str(entry.get("message", "")) for entry in log)
    facts: dict[str, Any] = {"engine": engine_numbers(text)}
    for entry in log:
        if entry.get("event") == "warm-start" and entry.get("seconds") is not None:
            facts["restore_seconds"] = entry["seconds"]
        if entry.get("event") == "healthy":
            facts["healthy_seconds"] = entry["seconds"]
    if match := re.search(r"init engine .*?\(compilation: ([\d.]+) s\)", text):
        facts["engine"]["compilation_seconds"] = float(match[1])
    kept = [
        entry
        for entry in log
        if "event" in entry or _START_LINES.search(str(entry.get("message", "")))
    ]
    facts["log"] = [f"{entry.get('time', '')} {str(entry['message'])[:240]}" for entry in kept][:80]
    return facts
