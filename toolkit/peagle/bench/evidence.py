"""A result as evidence of the catalogue and back; files of both, and the price of their GPUs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from peagle.bench.result import (
    BenchedServer,
    BenchHost,
    BenchLoad,
    BenchResult,
    BenchRow,
    BenchSetting,
    BenchWorkload,
    Interval,
    MeasuredAcceptance,
    Repetition,
    Times,
)
from peagle.bench.workloads import first_problem
from peagle.catalog.documents import LARGEST_EVIDENCE, BadFile, display_path, read_bytes
from peagle.catalog.evidence import read_run
from peagle.catalog.schema import NO_GPU, Catalog, Seconds, Speed, SpeedRun
from peagle.errors import UserError
from peagle.planning.runtime import DEFAULT_REGION, price_of
from peagle.speed.models import WORKLOADS, AcceptanceBasis, Workload
from peagle.store import SANDBOX, write_file
from peagle.text import usd_per_million
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits

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
    server, host = result.server, result.host
    if server.pair is None or server.vllm is None or server.where == SANDBOX:
        is_sandbox = server.where == SANDBOX
        what = "the sandbox has no GPU" if is_sandbox else "its pair or vLLM is unknown"
        raise UserError(
            f"the result of {server.name} cannot be evidence for a pair: {what}",
            "measure a pair of the catalogue on this machine, or a deployment on AWS",
            "not-evidence",
        )
    sizes = _sizes(result)
    rows = [row for row in result.rows if row.is_complete]
    if not rows:
        raise UserError(
            "no load was measured without errors, so there is nothing to save",
            "measure again",
            "not-evidence",
        )
    return {
        "pair": server.pair.partition("+")[0],
        "date": result.started[:10],
        "engine": {"name": "vllm", "version": server.vllm},
        "device": server.gpu or host.cpu,
        "gpu": server.gpu or NO_GPU,
        "gpu_count": server.gpu_count or 0,
        "tensor_parallel_size": server.tensor_parallel_size or 1,
        "hosts": [
            {"python": host.python, "cpus": host.cpus, "cpu": host.cpu, "system": host.system}
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
    }


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
        read_run(Path("result"), text.encode())
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


def save_evidence(result: BenchResult, folder: Path) -> Path:
    """Write the result as evidence to the catalogue in ``folder``, which is made if needed; returns
    the path. The same rows again change nothing; other evidence keeps its file.

    Raises UserError for a result that is not evidence, and OSError.
    """
    document = evidence_document(result)
    content, first = evidence_text(document).encode(), Path(evidence_name(document))
    (folder / "evidence").mkdir(parents=True, exist_ok=True)
    for number in count(1):
        name = first.name if number == 1 else f"{first.stem}-{number}{first.suffix}"
        path = folder / "evidence" / name
        if not path.exists():
            write_file(path, content)
        elif _rows_in(path.read_bytes()) != _rows_in(content):
            continue
        break
    return path


def _rows_in(content: bytes) -> bytes:
    return content.partition(b'"speeds": [')[2]


def _sizes(result: BenchResult) -> dict[BenchWorkload, tuple[int, int]]:
    """Mean tokens of prompt and answer of each workload, the same for all of its rows: planning
    compares rows of one size. Raises UserError for two workloads of the same size."""
    sizes: dict[tuple[int, int], BenchWorkload] = {}
    for workload, every in result.by_workload().items():
        rows = [row for row in every if row.is_complete]
        if not rows:
            continue
        prompt = sum(row.prompt_tokens for row in rows) / len(rows)
        answer = sum(row.output_tokens for row in rows) / len(rows)
        size = (max(1, round(prompt)), max(1, round(answer)))
        if other := sizes.get(size):
            raise UserError(
                f"{other.name} and {workload.name} have requests of the same size "
                f"({size[0]:,} and {size[1]:,} tokens), which evidence cannot tell apart",
                "save them one at a time",
                "not-evidence",
            )
        sizes[size] = workload
    return {workload: size for size, workload in sizes.items()}


def _speed(row: BenchRow, size: tuple[int, int]) -> dict[str, Any]:
    """The fastest repetition, as ``catalog.schema.Speed`` says."""
    speed = row.fastest
    best = max(row.repetitions, key=lambda repetition: repetition.tokens_per_second, default=row)
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
        **_latencies(best),
    }


def _raw(row: BenchRow, size: tuple[int, int]) -> dict[str, Any]:
    """Each repetition, and what the setting and the load were."""
    accepted, workload = row.acceptance, row.load.workload
    return {
        "drafter": row.setting.drafter,
        "k": row.setting.k,
        "imposed_rates": list(row.setting.imposed_rates) or None,
        "workload": workload.name,
        "fixed_length": workload.fixed_length,
        "prompts_sha256": workload.digest,
        "concurrency": row.load.concurrency,
        "prompt_tokens": size[0],
        "output_tokens": size[1],
        "drafts": accepted.drafts if accepted else 0,
        "accepted_by_position": [round(r, 4) for r in accepted.per_position] if accepted else [],
        "saturated": row.saturated,
        "sender_cpu_share": row.sender_cpu_share,
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


def _latencies(measured: BenchRow | Repetition) -> dict[str, dict[str, float] | None]:
    """Mean and percentiles of the three times, as ``catalog.schema.Seconds``."""
    times = {"ttft": measured.ttft, "itl": measured.itl, "tpot": measured.tpot}
    names = ("mean", "p50", "p90", "p99")
    return {
        f"{name}_seconds": {key: round(getattr(value, key), 6) for key in names} if value else None
        for name, value in times.items()
    }


CONFIDENCE = "the 95 % confidence interval of the repetitions"
"""What ``Interval`` holds in a result of ``peagle bench``."""

SLOWEST_AND_FASTEST = "the slowest and the fastest repetition"
"""What low and high are in evidence."""

_LIMITS = Limits(size=LARGEST_EVIDENCE)


def read_result(path: Path) -> tuple[BenchResult, str]:
    """The result in the file, of ``peagle bench`` or evidence, and what its intervals are.

    Raises UserError for a file that is damaged, holds neither, or has impossible numbers.
    """
    shown = display_path(path)
    try:
        content = read_bytes(path)
        document = json_reader.read(content, shown, limits=_LIMITS)
        if not isinstance(document, dict) or not {"speeds", "rows"} & set(document):
            raise UserError(
                f"{shown} holds no measured speeds",
                "use the JSON result of a bench or a sweep, or evidence with speeds",
                "damaged-result",
            )
        if "speeds" in document:
            run = read_run(path, content)
            assert run is not None
            return _of_evidence(run, document), SLOWEST_AND_FASTEST
        result = TypeAdapter(BenchResult).validate_json(json.dumps(document))
        why = next(_impossible(result.rows), "")
    except BadFile as bad:
        raise UserError(bad.problem.text, bad.problem.fix, "damaged-result") from bad
    except (InvalidJson, ValidationError) as error:
        why = str(error).partition(" [type=")[0]
    if why:
        raise UserError(f"{shown} cannot be read: {why}", "measure again", "damaged-result")
    return result, CONFIDENCE


def _impossible(rows: Iterable[BenchRow]) -> Iterator[str]:
    """The rows whose numbers no engine can have, by the rules for evidence. A load that ended at
    once has no speed."""
    for number, row in enumerate(rows):
        if row.incomplete and not row.tokens_per_second.value:
            continue
        try:
            mean = {"output_tokens_per_second": row.tokens_per_second.value}
            speed = Speed.model_validate_json(json.dumps(_speed(row, (1, 1)) | mean))
        except ValidationError as error:
            yield f"rows[{number}].{first_problem(error)}"
            continue
        if speed.acceptance_length and speed.acceptance_length > speed.k + 1:
            yield f"rows[{number}]: acceptance length {speed.acceptance_length} with K={speed.k}"


def _of_evidence(run: SpeedRun, document: dict[str, Any]) -> BenchResult:
    """The speeds, with what their file says of where they were measured."""
    price, commands = document.get("usd_per_hour"), document.get("commands")
    usd = float(price) if isinstance(price, int | float) and 0 < price < 1e9 else None
    return BenchResult(
        server=BenchedServer(
            name=run.file,
            where="evidence",
            base_url="",
            model=run.target,
            pair=run.target,
            vllm=run.vllm,
            gpu=None if run.gpu == NO_GPU else run.gpu,
            tensor_parallel_size=run.tensor_parallel_size,
        ),
        started=run.date.isoformat(),
        toolkit="",
        sender=(str(document.get("script", "")), ""),
        host=BenchHost("", "", 0, str(document.get("device", ""))),
        command=tuple(map(str, commands)) if isinstance(commands, list) else (),
        rows=tuple(_row(run, speed, usd) for speed in run.speeds),
        usd_per_hour=usd,
        price_source=str(document.get("price_source")) if usd else None,
    )


def _row(run: SpeedRun, speed: Speed, usd_per_hour: float | None) -> BenchRow:
    size = Workload(speed.prompt_tokens or 0, speed.output_tokens or 0)
    names = {preset: name for name, preset in WORKLOADS.items()}
    name = names.get(size, f"{size.prompt_tokens}x{size.output_tokens}")
    accepted = None
    if speed.acceptance_length is not None and speed.k:
        basis: AcceptanceBasis = "imposed" if run.synthetic else "measured"
        accepted = MeasuredAcceptance(speed.acceptance_length, (), 0, basis)
    value, repetitions = speed.output_tokens_per_second, speed.repetitions or 1
    return BenchRow(
        setting=BenchSetting(speed.drafter, speed.k),
        load=BenchLoad(
            BenchWorkload(name, size), speed.concurrency, speed.concurrency, repetitions
        ),
        repetitions=(),
        tokens_per_second=Interval(value, speed.low or value, speed.high or value),
        ttft=_times(speed.ttft_seconds),
        itl=_times(speed.itl_seconds),
        tpot=_times(speed.tpot_seconds),
        prompt_tokens=size.prompt_tokens,
        output_tokens=size.output_tokens,
        acceptance=accepted,
        usd_per_million_tokens=usd_per_million(usd_per_hour, value),
    )


def _times(seconds: Seconds | None) -> Times | None:
    """The times, whose number evidence does not say."""
    if seconds is None:
        return None
    return Times(seconds.mean, seconds.p50, seconds.p90, seconds.p99, 1)


def price_of_gpus(
    catalog: Catalog, gpu: str, count: int, region: str = DEFAULT_REGION
) -> tuple[float, str] | None:
    """USD per hour of so many of these GPUs, and where it comes from: their share of the instance
    type on which they are cheapest, in ``region``, else in any. ``None`` where the catalogue has no
    price."""
    prices = []
    for instance in catalog.instances.instances:
        elsewhere = min(instance.prices, key=lambda price: price.usd_per_hour, default=None)
        price = price_of(instance, region).value or elsewhere
        if instance.gpu == gpu and instance.gpu_count >= count and price is not None:
            parts = instance.gpu_count / count
            source = f"{instance.type} in {price.region}, {price.date.isoformat()}"
            source = source if parts == 1 else f"1/{parts:g} of {source}"
            prices.append((price.usd_per_hour / parts, instance.type, source))
    if not prices:
        return None
    usd, _, source = min(prices)
    return usd, source


def priced_result(
    result: BenchResult, catalog: Catalog, usd_per_hour: float | None = None
) -> BenchResult:
    """The result at this price, else at its own, else at the catalogue's for its GPUs."""
    if usd_per_hour is not None:
        return result.at_price(usd_per_hour, "given")
    server = result.server
    if result.usd_per_hour is not None or server.gpu is None:
        return result
    price = price_of_gpus(catalog, server.gpu, server.tensor_parallel_size or 1)
    return result.at_price(*price) if price else result
