"""Results as evidence, which planning reads (catalog/evidence.py has the format)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peagle.bench.compare import complete, known, workloads
from peagle.bench.models import BenchResult, BenchRow, BenchWorkload, Repetition, Times
from peagle.catalog.documents import BadFile
from peagle.catalog.evidence import read_speeds
from peagle.catalog.schema import NO_GPU, Speed
from peagle.errors import UserError
from peagle.store import SANDBOX

SCRIPT = "toolkit/peagle/bench/sweep.py"

_METHOD = (
    "Requests of aiperf at a fixed concurrency, streamed. A row of speeds is the fastest "
    "repetition, with its latencies; low and high are the slowest and the fastest; one repetition "
    "before them is not counted. TTFT is from a request's sending to its first output; ITL is "
    "between two outputs of a request, of several tokens each with speculation; TPOT is per token "
    "after the first output."
)


def evidence_document(result: BenchResult) -> dict[str, Any]:
    """The result as a file of evidence: speeds as planning reads them, and raw repetitions.

    Rows that ended early or in which requests failed are left out, prompts too. Raises UserError
    for a result that says nothing of a pair, and if no row is left.
    """
    server = result.server
    if server.pair is None or server.vllm is None or server.where == SANDBOX:
        is_sandbox = server.where == SANDBOX
        what = "the sandbox has no GPU" if is_sandbox else "its pair or vLLM is unknown"
        raise UserError(
            f"the result of {server.name} cannot be evidence for a pair: {what}",
            "measure a pair of the catalogue on this machine, or a deployment on AWS",
            "not-evidence",
        )
    rows = complete(result.rows)
    if not rows:
        raise UserError(
            "no load was measured without errors, so there is nothing to save",
            "measure again",
            "not-evidence",
        )
    sizes = _sizes(rows)
    return {
        "pair": server.pair.partition("+")[0],
        "date": result.started[:10],
        "engine": {"name": "vllm", "version": server.vllm},
        "device": server.gpu or result.host.cpu,
        "gpu": server.gpu or NO_GPU,
        "gpu_count": server.gpu_count or 0,
        "tensor_parallel_size": server.tensor_parallel_size or 1,
        "hosts": [
            {"python": result.host.python, "cpus": result.host.cpus, "cpu": result.host.cpu,
             "system": result.host.system}
        ],
        "commands": [shlex.join(result.command)],
        "method": _METHOD,
        "synthetic": any(row.setting.imposed_rates for row in rows),
        "script": SCRIPT,
        "toolkit": result.toolkit,
        "sender": list(result.sender),
        "started": result.started,
        "instance_type": server.instance_type,
        "usd_per_hour": result.usd_per_hour,
        "price_source": result.price_source,
        "speeds": [_speed(row, sizes[row.load.workload]) for row in rows],
        "raw": [_raw(row, sizes[row.load.workload]) for row in rows],
    }  # fmt: skip


def evidence_text(document: dict[str, Any]) -> str:
    """The document as JSON with one line per row. Raises UserError if planning would refuse it."""
    lists = {key: document[key] for key in ("speeds", "raw")}
    head = json.dumps({k: v for k, v in document.items() if k not in lists}, indent=1)
    parts = [head.removesuffix("\n}")]
    for key, rows in lists.items():
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        parts.append(f' "{key}": [\n  {lines}\n ]')
    text = ",\n".join(parts) + "\n}\n"
    try:
        read_speeds(Path("result"), text.encode())
    except BadFile as bad:
        raise UserError(
            f"the result cannot be evidence: {bad.problem.text}", "measure again", "not-evidence"
        ) from bad
    return text


def evidence_name(document: dict[str, Any]) -> str:
    """The name of the file: ``speed-gpt-oss-20b-h200-vllm-0.28.0-2026-11-22.json``."""
    gpus = document["tensor_parallel_size"]
    words = (
        "speed", document["pair"].rpartition("/")[2], document["gpu"],
        f"{gpus}-gpus" if gpus > 1 else "", "vllm", document["engine"]["version"],
        document["date"],
    )  # fmt: skip
    name = "-".join(word for word in words if word).lower()
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in name) + ".json"


def _sizes(rows: list[BenchRow]) -> dict[BenchWorkload, tuple[int, int]]:
    """Mean tokens of prompt and answer of each workload, the same for all of its rows: planning
    compares rows of one size. Raises UserError for two workloads of the same size."""
    sizes: dict[BenchWorkload, tuple[int, int]] = {}
    for workload in workloads(rows):
        ours = [row for row in rows if row.load.workload == workload]
        prompt = sum(row.prompt_tokens for row in ours) / len(ours)
        answer = sum(row.output_tokens for row in ours) / len(ours)
        size = (max(1, round(prompt)), max(1, round(answer)))
        for other, taken in sizes.items():
            if taken == size:
                raise UserError(
                    f"{other.name} and {workload.name} have requests of the same size "
                    f"({size[0]:,} and {size[1]:,} tokens), which evidence cannot tell apart",
                    "save them one at a time",
                    "not-evidence",
                )
        sizes[workload] = size
    return sizes


def _speed(row: BenchRow, size: tuple[int, int]) -> dict[str, Any]:
    """The fastest repetition, as ``catalog.schema.Speed`` says."""
    speed = row.fastest
    best = max(row.repetitions, key=lambda one: one.tokens_per_second, default=row)
    return {
        "drafter": row.setting.drafter,
        "k": row.setting.k,
        "concurrency": row.load.concurrency,
        "output_tokens_per_second": round(speed.value, 3),
        "low": round(speed.low, 3),
        "high": round(speed.high, 3),
        "repetitions": max(1, len(row.repetitions)),
        "acceptance_length": round(row.acceptance.length, 4) if row.acceptance else None,
        "prompt_tokens": size[0],
        "output_tokens": size[1],
        "ttft_seconds": _seconds(best.ttft),
        "itl_seconds": _seconds(best.itl),
        "tpot_seconds": _seconds(best.tpot),
    }


def _seconds(times: Times | None) -> dict[str, float] | None:
    if times is None or not known(times):
        return None
    names = ("mean", "p50", "p90", "p99")
    return {name: round(getattr(times, name), 6) for name in names}


def _raw(row: BenchRow, size: tuple[int, int]) -> dict[str, Any]:
    accepted = row.acceptance
    return {
        "drafter": row.setting.drafter,
        "k": row.setting.k,
        "imposed_rates": list(row.setting.imposed_rates) or None,
        "workload": row.load.workload.name,
        "fixed_length": row.load.workload.fixed_length,
        "prompts_sha256": row.load.workload.digest,
        "concurrency": row.load.concurrency,
        "prompt_tokens": size[0],
        "output_tokens": size[1],
        "drafts": accepted.drafts if accepted else 0,
        "accepted_by_position": [round(r, 4) for r in accepted.per_position] if accepted else [],
        "saturated": row.saturated,
        "sender_cpu_share": row.sender_cpu_share,
        "tries": [_try(one) for one in row.repetitions],
    }


def _try(one: Repetition) -> dict[str, Any]:
    return {
        "output_tokens_per_second": round(one.tokens_per_second, 3),
        "seconds": round(one.seconds, 4),
        "requests": one.requests,
        "prompt_tokens": one.prompt_tokens,
        "output_tokens": one.output_tokens,
        "ttft_seconds": _seconds(one.ttft),
        "itl_seconds": _seconds(one.itl),
        "tpot_seconds": _seconds(one.tpot),
    }


def impossible(rows: Iterable[BenchRow]) -> Iterator[str]:
    """The rows whose numbers no engine can have, by the rules for evidence. A load that ended at
    once has no speed."""
    for number, row in enumerate(rows):
        if row.incomplete and not row.tokens_per_second.value:
            continue
        try:
            mean = {"output_tokens_per_second": row.tokens_per_second.value}
            speed = Speed.model_validate_json(json.dumps(_speed(row, (1, 1)) | mean))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            key = ".".join(map(str, detail["loc"]))
            yield f"rows[{number}].{key}: {detail['msg'].lower()}"
            continue
        if speed.acceptance_length and speed.acceptance_length > speed.k + 1:
            yield f"rows[{number}]: acceptance length {speed.acceptance_length} with K={speed.k}"
