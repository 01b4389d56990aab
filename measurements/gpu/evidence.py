"""The evidence files: how the results of memory and speed become documents.

Each document names its script, engine, GPU and method. Evidence of memory grows by rows; a document
of speed is made from the results of one measurement (as one of warm starts is, ``warm_evidence``).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measurements.gpu import load
from measurements.gpu.geometry import CATALOG_IDS, WITH_EXPERTS

FOLDER = Path(__file__).resolve().parents[2] / "model_catalog" / "evidence"
MEMORY_EVIDENCE = FOLDER / "memory-h200.json"

_NO_GRAPHS = "stopped after the cache was laid out, so no CUDA graphs were captured"
_REFUSAL = re.compile(r"(?:Value error, |NotImplementedError: ).*?(?= \[type=|$)", re.MULTILINE)
_ONE_PER_DOCUMENT = ("pair", "device", "vllm", "torch", "driver", "tensor_parallel_size",
                     "temperature")  # fmt: skip
_SPEED_KEYS = ("drafter", "k", "concurrency", "output_tokens_per_second", "low", "high",
               "repetitions", "acceptance_length", "prompt_tokens", "output_tokens",
               "ttft_seconds", "itl_seconds", "tpot_seconds")  # fmt: skip
_ONCE_PER_SPEED_DOCUMENT = (*_ONE_PER_DOCUMENT, "host", "command")
_ROW_PER_LINE = ("speeds", "raw")
_ENGINE_AND_LOAD = ("drafter", "k", "concurrency")
DISTURBED = 0.2
"""How much longer than with other prompts one request's median ITL is in a disturbed row, as a
share. In the first evidence 14 of 18 settings are within 14 %, the others beyond 30 %."""
_NOT_KEPT = ("log_tail", "vllm", "torch", "driver")

MEMORY_METHOD = (
    "Starts vLLM once per row and records the memory that it counts. Real geometry (catalog"
    " configs), dummy weights, a server's usage context; raw numbers in bytes as the worker counts"
    " them."
)
SPEED_METHOD = (
    "Real geometry (catalog configs), dummy weights and synthetic acceptance: vLLM's synthetic"
    " rejection sampler at the published acceptance of the pair (DECAY in"
    " measurements/gpu/speed.py; imposed_rates of each raw row). Prompts of random tokens, all"
    " sent at once, output of a fixed length, at the temperature of the raw rows. A row of"
    " speeds is the fastest repetition, with that repetition's latencies and acceptance_length"
    " (the engine's own count); low and high are the slowest and the fastest, raw has each."
    " Repetitions end within 5 % of each other, or at a maximum of number or time. vLLM"
    " compiles Triton kernels when a batch first has a new shape, about 1 s each: it is in"
    " not_counted, a repetition before the others that no row counts, and where a row has"
    " none, in low, in the p99 of TTFT and ITL, and in high where every repetition has it."
    " TTFT is from a request's sending to its first output, the wait for other prompts"
    " included; ITL is between two outputs of a request, of several tokens each with"
    " speculation; TPOT is per token after the first. Rows that other work on the host slowed"
    " down are only in raw: those whose repetition that is not counted is over 5 % faster than"
    " all others, and those of one request whose median ITL is more than 20 % above that of"
    " the same engine with other prompts, on which it hardly depends."
)
REPEATED_EXPERTS = (
    "dummy weights made the tokens of a step use the same experts, so these rows are too fast and"
    " are not compared"
)
"""The caveat of a document with such rows (``repeats_experts``)."""
INDEPENDENT_EXPERTS = (
    "random tokens share experts only by chance, so drafts of real text can be faster"
)
"""The caveat of other rows with speculation on a target with experts."""

Row = dict[str, Any]
Document = dict[str, Any]


def new_memory_document(rows: Sequence[Row]) -> Document:
    """An empty document of memory for the engine and GPU of these rows.

    Raises ValueError if no row has both.
    """
    for row in rows:
        if "vllm" in row and row.get("ranks"):
            return {
                "date": "",
                "engine": {"name": "vllm", "version": row["vllm"].partition("+")[0]},
                "device": row["ranks"][0]["device"],
                "driver": row["driver"],
                "torch": row["torch"],
                "script": "measurements/gpu/memory.py",
                "method": MEMORY_METHOD,
                "rows": [],
                "log_rows": [],
            }
    raise ValueError("no row with an engine that started")


def measured(document: Mapping[str, Any]) -> set[str]:
    """Names of the measured memory rows: the engine laid out its cache or refused to start."""
    return {row["name"] for row in document.get("rows", ())}


def merge_rows(document: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The document of memory with these rows added; a row replaces the one of the same name.

    A row without a probe's facts goes to ``log_rows``. A row without any result is dropped, and
    only a complete row replaces a complete one. Without new rows the document is unchanged.
    Raises ValueError for rows of another vLLM version or GPU.
    """
    version, kept = document["engine"]["version"], {r["name"]: r for r in document["rows"]}
    logs = {row["name"]: row for row in document["log_rows"]}
    host = 1 + max((row["host"] for row in [*kept.values(), *logs.values()]), default=0)
    new = 0
    for raw in rows:
        devices = {rank["device"] for rank in raw.get("ranks", ()) if "device" in rank}
        if "device" in document and devices - {document["device"]}:
            raise ValueError(f"{raw['name']} is from {devices}, not from {document['device']}")
        if raw.get("vllm", version).partition("+")[0] != version:
            measured_version = raw["vllm"]
            raise ValueError(
                f"{raw['name']} is from vLLM {measured_version}, the evidence from {version}"
            )
        row = _finished({**raw, "host": raw.get("host", host)})
        if row is None:
            continue
        rows_by_name = logs if not row["ranks"] and "error" not in row else kept
        before = rows_by_name.get(row["name"])
        if before is None or ("incomplete" not in row and "error" not in row):
            new += before != row
            rows_by_name[row["name"]] = row
    if not new:
        return dict(document)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    changed = {"rows": list(kept.values()), "log_rows": list(logs.values()), "date": today}
    return {**document, **changed}


def _finished(row: Row) -> Row | None:
    """The row for the evidence; ``None`` if the engine neither laid out its cache nor gave a reason
    for not starting."""
    kept = {key: value for key, value in row.items() if key not in _NOT_KEPT}
    if "error" not in row:
        return kept
    refusal = _REFUSAL.search(row.get("log_tail", ""))
    if "kv_cache_tokens" in row["logged"]:
        del kept["error"]
        end = {"ended_with": refusal[0]} if refusal else {}
        return {**kept, "incomplete": _NO_GRAPHS, **end}
    return {**kept, "error": f"refused: {refusal[0]}"} if refusal else None


def rows_of(folders: Sequence[Path]) -> list[Row]:
    """The rows in ``rows.jsonl`` of these folders."""
    files = [folder / "rows.jsonl" for folder in folders]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def read(path: Path) -> dict[str, Any]:
    """The document in an evidence file; empty if there is no file."""
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text())
        return document
    return {}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write an evidence file; rows of speed take one line each."""
    parts = []
    for key, value in document.items():
        text = json.dumps(value, indent=1).replace("\n", "\n ")
        if key in _ROW_PER_LINE and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def speed_document(folders: Sequence[Path]) -> dict[str, Any]:
    """The document of all speeds, sorted by workload, drafter, K and load.

    Without the target alone there is nothing to compare a drafter with, and rows that repeat
    experts compare nothing: then the document has only ``raw`` rows, which plans ignore. So are
    disturbed rows and those without the imposed acceptance. Raises ValueError without rows, or if
    they are from several versions of vLLM, torch or the driver, several pairs or several GPUs, or
    with several temperatures.
    """
    rows = rows_of(folders)
    if not rows:
        raise ValueError("these folders contain no rows")
    software = {tuple(row[name] for name in _ONE_PER_DOCUMENT) for row in rows}
    if len(software) != 1:
        raise ValueError(f"these rows are from several versions: {sorted(software)}")
    ((pair, device, vllm, torch, driver, size, _),) = software
    ordered = list({_order(row): row for row in sorted(rows, key=_order)}.values())
    speeds = [
        {key: {**row, **load.fastest(row["tries"])}[key] for key in _SPEED_KEYS}
        for row in ordered
        if acceptance_is_imposed(row) and not is_disturbed(row, ordered)
    ]
    alone = any(row["drafter"] is None for row in rows)
    comparable = alone and not any(repeats_experts(row, pair) for row in rows)
    not_raw = {*_ONCE_PER_SPEED_DOCUMENT, *load.fastest(ordered[0]["tries"])}
    raw = [{key: value for key, value in row.items() if key not in not_raw} for row in ordered]
    return {
        "pair": CATALOG_IDS[pair],
        "date": max(row["measured"] for row in rows)[:10],
        "engine": {"name": "vllm", "version": vllm.partition("+")[0]},
        "device": device,
        "gpu": device.removeprefix("NVIDIA ").split()[0],
        "gpu_count": size,
        "tensor_parallel_size": size,
        "driver": driver,
        "torch": torch,
        "hosts": _distinct(rows, "host"),
        "commands": _distinct(rows, "command"),
        "method": SPEED_METHOD,
        **_caveat(pair, rows),
        "synthetic": True,
        "script": "measurements/gpu/speed.py",
        **({"speeds": speeds} if comparable else {}),
        "raw": raw,
    }


def _caveat(pair: str, rows: Sequence[Row]) -> dict[str, str]:
    """What the rows do not show of real requests; empty for a target without experts."""
    if any(repeats_experts(row, pair) for row in rows):
        return {"caveat": REPEATED_EXPERTS}
    drafts = pair in WITH_EXPERTS and any(row["k"] for row in rows)
    return {"caveat": INDEPENDENT_EXPERTS} if drafts else {}


def repeats_experts(row: Mapping[str, Any], pair: str) -> bool:
    """Whether dummy weights made the tokens of a row's steps use the same experts.

    The biases of GPT-OSS's routers outweigh what a token has of its own, and a parallel drafter
    proposes one token at all positions, unless ``dummy_weights`` removed the biases and replaced
    the drafts.
    """
    if pair not in WITH_EXPERTS:
        return False
    if row["k"] and row.get("drafted_tokens") != "random":
        return True
    biased = pair.startswith("gpt-oss") and row.get("biases") != "zero"
    return biased and row["concurrency"] > 1


def acceptance_is_imposed(row: Row) -> bool:
    """Whether the engine accepted drafts at the imposed rates, within 30 %: one request has
    about a hundred drafts.

    vLLM 0.30.0 accepts hardly any draft with adaptive verification and the synthetic sampler, so
    such a row is only ``raw``.
    """
    if not row.get("imposed_rates"):
        return True
    expected = 1 + sum(row["imposed_rates"])
    length: float = load.fastest(row["tries"])["acceptance_length"]
    return abs(length - expected) <= 0.3 * expected


def is_disturbed(row: Row, rows: Sequence[Row]) -> bool:
    """Whether other work on the host slowed this row down, according to ``rows`` of its document.

    It did where the repetition before the others, in which vLLM compiles kernels, is the fastest.
    And one request's step reads the same weights whatever the prompt (the KV cache of 2,048 tokens
    adds 0.03 ms to 5 ms): with speculation the CPU determines much of it, and a step that is much
    longer than with other prompts waited for the CPU.
    """
    best: float = load.fastest(row["tries"])["output_tokens_per_second"]
    if row.get("not_counted", 0.0) > (1 + load.INTERVAL) * best:
        return True
    if row["concurrency"] != 1:
        return False
    same = (other for other in rows if all(other[key] == row[key] for key in _ENGINE_AND_LOAD))
    return _median_itl(row) > (1 + DISTURBED) * min(map(_median_itl, same))


def _median_itl(row: Row) -> float:
    seconds: float = load.fastest(row["tries"])["itl_seconds"]["p50"]
    return seconds


def _order(row: Row) -> tuple[Any, ...]:
    sizes = row["prompt_tokens"], row["output_tokens"]
    graphs = row.get("max_cudagraph_capture_size") or 0
    return *sizes, row["drafter"] or "", row["k"], row["concurrency"], graphs


def _distinct(rows: Sequence[Row], key: str) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(row[key]) for row in rows)]
