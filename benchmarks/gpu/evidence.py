"""The evidence file of memory.py: what it has, and new rows put into it."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).resolve().parents[2] / "model_catalog" / "evidence" / "memory-h200.json"

_NO_GRAPHS = "stopped after the cache was laid out, so no CUDA graphs were captured"
_REFUSAL = re.compile(r"(?:Value error, |NotImplementedError: ).*?(?= \[type=|$)", re.MULTILINE)
_LEFT_OUT = ("log_tail", "vllm", "torch")

Row = dict[str, Any]


def measured(document: Mapping[str, Any]) -> set[str]:
    """Names of the rows that need not be run again: the engine laid out its cache, or refused."""
    return {row["name"] for row in document.get("rows", ())}


def merged(document: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The document with these rows added, each in the place of the one of its name.

    A row without a probe's facts goes to ``log_rows``; one in which nothing was reached is left
    out, and a row that is complete gives way to a complete one only. Without anything new the
    document stays as it is. Raises ValueError for rows of another vLLM.
    """
    version, kept = document["engine"]["version"], {r["name"]: r for r in document["rows"]}
    logs = {row["name"]: row for row in document["log_rows"]}
    host = 1 + max((row["host"] for row in [*kept.values(), *logs.values()]), default=0)
    new = 0
    for raw in rows:
        if raw.get("vllm", version).partition("+")[0] != version:
            raise ValueError(f"{raw['name']} is of vLLM {raw['vllm']}, the evidence of {version}")
        row = finished({**raw, "host": raw.get("host", host)})
        if row is None:
            continue
        place = logs if not row["ranks"] and "error" not in row else kept
        before = place.get(row["name"])
        if before is None or ("incomplete" not in row and "error" not in row):
            new += before != row
            place[row["name"]] = row
    if not new:
        return dict(document)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    changed = {"rows": list(kept.values()), "log_rows": list(logs.values()), "date": today}
    return {**document, **changed}


def finished(row: Row) -> Row | None:
    """The row as the evidence keeps it; ``None`` when the engine neither laid out its cache nor
    said why it would not start."""
    kept = {key: value for key, value in row.items() if key not in _LEFT_OUT}
    if "error" not in row:
        return kept
    refusal = _REFUSAL.search(row.get("log_tail", ""))
    if "kv_cache_tokens" in row["logged"]:
        del kept["error"]
        end = {"ended_with": refusal[0]} if refusal else {}
        return {**kept, "incomplete": _NO_GRAPHS, **end}
    return {**kept, "error": f"refused: {refusal[0]}"} if refusal else None


def rows_of(folders: Sequence[Path]) -> list[Row]:
    """The rows that the folders hold."""
    files = [folder / "rows.jsonl" for folder in folders]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def read(path: Path) -> dict[str, Any]:
    """The evidence file; an empty document where there is none."""
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text())
        return document
    return {}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """The evidence file, always laid out alike."""
    path.write_text(json.dumps(document, indent=1) + "\n")
