"""What vLLM's own log says of its memory."""

from __future__ import annotations

import re
from typing import Any

LOG_LINES = re.compile(
    r"GiB|MiB|KV cache size|Maximum concurrency|backend|padding layers|[Mm]xfp4|MXFP4|model runner"
    r"|Model Runner|max_num_scheduled_tokens|Defaulting|Raising|Sharing|Keeping separate"
    r"|cudagraph|CUDA graph|capture|Asynchronous|compil|took"
)

LOGGED = {
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


def logged(text: str) -> dict[str, Any]:
    """What the engine itself said of its memory, and whether it found its compiled code."""
    found = {key: re.search(pattern, text) for key, pattern in LOGGED.items()}
    numbers: dict[str, Any] = {
        key: float(match[1].replace(",", "")) for key, match in found.items() if match
    }
    if "AOT compil" in text:
        numbers["compiled_before"] = "saved AOT compiled function" not in text
    if match := re.search(r"Profiling CUDA graph memory: (.*)", text):
        numbers["graphs"] = match[1]
    return numbers


def without_folders(line: str) -> str:
    """The line with nothing left of paths but their last names."""
    return re.sub(r"/(?:[\w.+-]+/)+", "", line)


def log_lines(text: str) -> list[str]:
    """The lines of a log that speak of memory and of what decides on it, without folders."""
    lines = [line for line in text.splitlines() if LOG_LINES.search(line)]
    lines = [line for line in lines if not line.startswith("DEBUG") or re.search("[GM]iB", line)]
    short = [re.sub(r"^.*?\] ", "", line)[:400] for line in lines]
    short = [without_folders(line) for line in short]
    kept = [line for line in short if not re.search("Initializing a V1|init_method", line)]
    return list(dict.fromkeys(kept))[:120]
