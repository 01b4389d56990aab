"""A result in its file, and as evidence of the catalogue."""

from __future__ import annotations

import json
import shlex
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from peagle.bench.result import BenchResult, BenchRow, Repetition, Times
from peagle.catalog.documents import LARGEST_EVIDENCE, BadFile, display_path, read_bytes
from peagle.catalog.evidence import read_run
from peagle.catalog.schema import NO_GPU, Speed
from peagle.errors import UserError
from peagle.store import SANDBOX, write_file
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

SCRIPT = "toolkit/peagle/bench/sweep.py"

_METHOD = (
    "Requests of aiperf at a fixed concurrency, streamed. A row of speeds is the fastest "
    "repetition, with its latencies; low and high are the slowest and the fastest; one repetition "
    "before them is not counted. TTFT is from a request's sending to its first output; ITL is "
    "between two outputs of a request, of several tokens each with speculation; TPOT is per token "
    "after the first output."
)


def evidence_document(result: BenchResult) -> dict[str, Any]:
    """The result as a file of evidence, without rows that failed and without prompts. Raises
    UserError for a result that says nothing of a pair, and if no row is left."""
    server, host = result.server, result.host
    if server.pair is None or server.vllm is None or server.where == SANDBOX:
        raise UserError(
            f"{server.name} gives no evidence: the sandbox has no GPU, or pair or vLLM is unknown",
            "measure a pair of the catalogue on this machine, or a deployment on AWS",
            "not-evidence",
        )
    rows: list[tuple[BenchRow, tuple[int, int]]] = []
    for of_workload in result.by_workload().values():
        if complete := [row for row in of_workload if _is_evidence(row)]:
            # Planning compares rows of one size: all of a workload have their mean.
            prompt = max(1, round(fmean(row.prompt_tokens for row in complete)))
            answer = max(1, round(fmean(row.output_tokens for row in complete)))
            rows += [(row, (prompt, answer)) for row in complete]
    if not rows:
        message = "no load was measured without errors, so there is nothing to save"
        raise UserError(message, "measure again", "not-evidence")
    on_words = [row.setting for row, _ in rows if not row.load.workload.digest]
    drafts_words = any(setting.k and not setting.imposed_rates for setting in on_words)
    return {
        "pair": server.pair.partition("+")[0],
        "date": result.started[:10],
        "engine": {"name": "vllm", "version": server.vllm},
        "device": server.gpu or host.cpu,
        "gpu": server.gpu or NO_GPU,
        "gpu_count": server.gpu_count or 0,
        "tensor_parallel_size": server.tensor_parallel_size or 1,
        "driver": server.driver,
        "cuda": server.cuda,
        "hosts": [
            {"python": host.python, "cpus": host.cpus, "cpu": host.cpu, "system": host.system}
        ],
        "commands": [shlex.join(result.command)],
        "method": _METHOD,
        "synthetic": any(row.setting.imposed_rates for row, _ in rows),
        "caveat": "fewer drafts of random words are accepted than of text" if drafts_words else "",
        "script": SCRIPT,
        "toolkit": result.toolkit,
        "sender": list(result.sender),
        "started": result.started,
        "instance_type": server.instance_type,
        "usd_per_hour": result.usd_per_hour,
        "price_source": result.price_source,
        "speeds": [_speed(row, size).model_dump() for row, size in rows],
        "raw": [_raw(row, *size) for row, size in rows],
    }


def _is_evidence(row: BenchRow) -> bool:
    """Whether it is complete, without pauses between requests, and, where the prefix cache has a
    part of the prompts, with a count of that."""
    workload = row.load.workload
    unknown = row.cached_prompt_tokens is None and workload.size.cached_prompt_tokens
    return row.is_complete and not unknown and not workload.think_seconds


def _speed(row: BenchRow, size: tuple[int, int]) -> Speed:
    """The fastest repetition."""
    cached, workload = 0, row.load.workload
    if workload.size.cached_prompt_tokens or workload.digest:  # else a few tokens of the template
        cached = min(round(row.cached_prompt_tokens or 0), size[0] - 1)
    best = max(row.repetitions, key=lambda repetition: repetition.tokens_per_second)
    return Speed(
        drafter=row.setting.drafter,
        k=row.setting.k,
        concurrency=row.load.concurrency,
        output_tokens_per_second=round(row.fastest.value, 3),
        low=round(row.fastest.low, 3),
        high=round(row.fastest.high, 3),
        repetitions=len(row.repetitions),
        acceptance_length=round(row.acceptance.length, 4) if row.acceptance else None,
        prompt_tokens=size[0],
        output_tokens=size[1],
        cached_prompt_tokens=cached,
        shared_prompt_tokens=min(workload.size.shared_prompt_tokens, cached),
        turns=workload.turns,
        max_cudagraph_capture_size=row.max_cudagraph_capture_size,
        **_latencies(best),
    )


def _latencies(measured: Repetition) -> dict[str, Any]:
    times = {"ttft": measured.ttft, "itl": measured.itl, "tpot": measured.tpot}
    return {f"{name}_seconds": _seconds(value) for name, value in times.items()}


def _seconds(times: Times | None) -> dict[str, float] | None:
    names = ("mean", "p50", "p90", "p99")
    return {name: round(getattr(times, name), 6) for name in names} if times else None


def _raw(row: BenchRow, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Each repetition, and what the setting and the load were."""
    accepted, workload = row.acceptance, row.load.workload
    return {
        "drafter": row.setting.drafter,
        "k": row.setting.k,
        "imposed_rates": list(row.setting.imposed_rates) or None,
        "workload": workload.name,
        "fixed_length": workload.fixed_length,
        "prompts_sha256": workload.digest,
        "turns": workload.turns,
        "first_turn_ttft_seconds": _seconds(row.first_turn_ttft),
        "concurrency": row.load.concurrency,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "drafts": accepted.drafts if accepted else 0,
        "accepted_by_position": [round(r, 4) for r in accepted.per_position] if accepted else [],
        "tries": [
            {
                "output_tokens_per_second": round(repetition.tokens_per_second, 3),
                "seconds": round(repetition.seconds, 4),
                "requests": repetition.requests,
                "prompt_tokens": repetition.prompt_tokens,
                "output_tokens": repetition.output_tokens,
                **_latencies(repetition),
            }
            for repetition in row.repetitions
        ],
    }


def save_evidence(result: BenchResult, folder: Path) -> Path:
    """Write the result as evidence to the catalogue in ``folder``, and return the path; the same
    rows again change nothing. Raises UserError for a result that is not evidence, and OSError."""
    document = evidence_document(result)
    lists = {key: document[key] for key in ("speeds", "raw")}
    head = json.dumps({k: v for k, v in document.items() if k not in lists}, indent=1)
    parts = [head.removesuffix("\n}")]
    for key, rows in lists.items():
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        parts.append(f' "{key}": [\n  {lines}\n ]')
    content = (",\n".join(parts) + "\n}\n").encode()
    try:
        read_run(Path("result"), content)
    except BadFile as bad:  # such as two workloads of the same size
        message = f"the result cannot be evidence: {bad.problem.text}"
        raise UserError(message, bad.problem.fix, "not-evidence") from bad
    gpus = document["tensor_parallel_size"]
    words = (
        "speed", document["pair"].rpartition("/")[2], document["gpu"],
        f"{gpus}-gpus" if gpus > 1 else "", "vllm", document["engine"]["version"],
        document["date"],
    )  # fmt: skip
    stem = "-".join(word for word in words if word).lower()
    stem = "".join(c if c.isalnum() or c in ".-" else "-" for c in stem)
    (folder / "evidence").mkdir(parents=True, exist_ok=True)
    paths = (folder / "evidence" / f"{stem}{f'-{n}' if n > 1 else ''}.json" for n in count(1))
    rows = content.partition(b'"speeds": [')[2]
    path = next(p for p in paths if not p.exists() or p.read_bytes().endswith(rows))
    if not path.exists():
        write_file(path, content)
    return path


_RESULT = TypeAdapter(BenchResult)


def read_result(path: Path) -> BenchResult:
    """The result of ``peagle bench`` in the file. Raises UserError for a file that is damaged,
    holds none, or has impossible numbers."""
    shown = display_path(path)
    try:
        content = read_bytes(path)
        document = json_reader.read(content, shown, limit=LARGEST_EVIDENCE)
        result = _RESULT.validate_json(json.dumps(document))
        for row in result.rows:
            if not row.incomplete:
                _speed(row, (1, 1))  # impossible numbers
        return result
    except BadFile as bad:
        raise UserError(bad.problem.text, bad.problem.fix, "damaged-result") from bad
    except (InvalidJson, ValueError) as error:
        why = str(error).partition(" [type=")[0]
        raise UserError(
            f"{shown} holds no result of a bench or a sweep: {why}",
            "measure again",
            "damaged-result",
        ) from error
