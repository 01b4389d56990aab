"""Results: compare their settings, save them as evidence, read and price them."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from peagle.bench.models import (
    NO_SPECULATION,
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
    is_measured,
)
from peagle.catalog.documents import LARGEST_EVIDENCE, BadFile, display_path, read_bytes
from peagle.catalog.evidence import read_speeds
from peagle.catalog.schema import NO_GPU, Catalog, Seconds, Speed, SpeedRun
from peagle.errors import UserError
from peagle.planning.prices import price_of
from peagle.planning.runtime import DEFAULT_REGION
from peagle.speed.acceptance import NO_DRAFT_ACCEPTANCE
from peagle.speed.crossover import crossover_text
from peagle.speed.decision import speculation_crossovers
from peagle.speed.models import Performance, Workload
from peagle.speed.slo import Slo
from peagle.speed.verdict import Setting, VerdictCrossover
from peagle.store import SANDBOX
from peagle.text import usd_per_million
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits


def meets(row: BenchRow, slo: Slo) -> bool:
    """Whether the row's mean times are within the objective; a time that was not measured is not,
    if it is limited."""
    ttft = row.ttft.mean if is_measured(row.ttft) else None
    itl = row.itl.mean if row.itl and is_measured(row.itl) else None
    excess = slo.excess(ttft, itl)
    return excess is not None and excess <= 1


@dataclass(frozen=True)
class Winner:
    """The fastest setting at one load. ``alone`` is the row without speculation, ``second`` the
    next best setting. ``clear``: its interval lies above that of the second."""

    best: BenchRow
    second: BenchRow | None
    alone: BenchRow | None

    @property
    def load(self) -> int:
        return self.best.load.concurrency

    @property
    def clear(self) -> bool:
        other = self.second
        return other is None or self.best.tokens_per_second.low > other.tokens_per_second.high

    @property
    def gain(self) -> float | None:
        """The speed as a multiple of that without speculation; ``None`` if that is not known."""
        if self.alone is None:
            return None
        return self.best.tokens_per_second.value / self.alone.tokens_per_second.value


def usable(rows: Iterable[BenchRow]) -> list[BenchRow]:
    """The rows with a speed: a load that ended at once has none."""
    return [row for row in rows if row.tokens_per_second.value > 0]


def complete(rows: Iterable[BenchRow]) -> list[BenchRow]:
    """The rows with a speed that did not end early and in which no request failed."""
    return [row for row in usable(rows) if not row.incomplete and not row.errors]


def workloads(rows: Iterable[BenchRow]) -> list[BenchWorkload]:
    """The workloads of the rows, each once, in their order."""
    return list(dict.fromkeys(row.load.workload for row in rows))


def settings(rows: Iterable[BenchRow]) -> list[BenchSetting]:
    """The settings of the rows: without speculation first, then by drafter and K."""
    found = dict.fromkeys(row.setting for row in rows)
    return sorted(found, key=lambda one: (one.k > 0, one.drafter or "", one.k, one.imposed_rates))


def winners(rows: Iterable[BenchRow], slo: Slo | None = None) -> list[Winner]:
    """The fastest setting at each load of one workload, ascending; with ``slo`` only of the
    settings that meet them, so that a load may be missing."""
    by_load: dict[int, list[BenchRow]] = {}
    for row in usable(rows):
        by_load.setdefault(row.load.concurrency, []).append(row)
    found = []
    for _, at_load in sorted(by_load.items()):
        alone = next((row for row in at_load if not row.setting.k), None)
        allowed = [row for row in at_load if slo is None or meets(row, slo)]
        ranked = sorted(allowed, key=lambda row: -row.tokens_per_second.value)
        if ranked:
            found.append(Winner(ranked[0], ranked[1] if ranked[1:] else None, alone))
    return found


def crossovers(
    rows: Iterable[BenchRow], usd_per_hour: float | None = None
) -> tuple[VerdictCrossover, ...]:
    """Where speculation stops or starts to pay for one workload, as a verdict on these rows as
    evidence says: of their fastest repetitions."""
    loads: dict[int, dict[Setting, Performance]] = {}
    for row in sorted(complete(rows), key=lambda row: row.fastest.value):
        one, speed = row.setting, row.fastest
        if not one.is_known:
            continue
        setting = Setting(drafter=(one.drafter or one.text) if one.k else None, k=one.k)
        found = Performance("measured", NO_DRAFT_ACCEPTANCE, "", speed.value, speed.low, speed.high)
        loads.setdefault(row.load.concurrency, {})[setting] = found
    return speculation_crossovers(loads, usd_per_hour)


def line_crossings(rows: Iterable[BenchRow]) -> list[tuple[float, str]]:
    """The loads at which the fastest line with speculation crosses the one without, in a plot of
    the rows' speeds with two logarithmic axes; whether speculation ``stops`` or ``starts`` there.
    """
    speeds: dict[int, dict[BenchSetting, float]] = {}
    for row in usable(rows):
        speeds.setdefault(row.load.concurrency, {})[row.setting] = row.tokens_per_second.value
    gains = {
        load: {
            setting: math.log(speed / alone)
            for setting, speed in by_setting.items()
            if setting.k and (alone := by_setting.get(NO_SPECULATION))
        }
        for load, by_setting in sorted(speeds.items())
    }
    crossings = []
    compared = [(load, by_setting) for load, by_setting in gains.items() if by_setting]
    for (load, before), (next_load, after) in pairwise(compared):
        lines = [(before[setting], after[setting]) for setting in before if setting in after]
        for start, end in lines:
            if (start > 0) == (end > 0):
                continue
            share = start / (start - end)
            if max(a + share * (b - a) for a, b in lines) < 1e-9:  # no other setting is above
                crossing = load * (next_load / load) ** share
                crossings.append((crossing, "stops" if start > 0 else "starts"))
    return sorted(crossings)


def fastest_text(rows: Sequence[BenchRow]) -> str:
    """Which setting is fastest at which loads of one workload, in one sentence with its gain."""
    best = winners(rows)
    if not best:
        return "Nothing was measured."
    parts = []
    for setting, group in groupby(best, key=lambda winner: winner.best.setting):
        members = list(group)
        gains = [winner.gain for winner in members if winner.gain is not None and setting.k]
        low, high = (f"{limit(gains):.2f}" if gains else "" for limit in (min, max))
        times = f"{low if low == high else f'{low} to {high}'} times the speed" if gains else ""
        overlap = "" if any(winner.clear for winner in members) else ", intervals overlap"
        text = f"{setting.text} at {_loads_text([winner.load for winner in members])}"
        more = f"{times}{overlap}".removeprefix(", ")
        parts.append(f"{text} ({more})" if more else text)
    against = ", against no speculation" if any("times" in part for part in parts) else ""
    return f"Fastest{against}: {', '.join(parts)}."


def summary_of(rows: Sequence[BenchRow], usd_per_hour: float | None = None) -> str:
    """The fastest settings of one workload, and each crossover of a verdict on the rows as
    evidence."""
    changes = (crossover_text(crossover) for crossover in crossovers(rows, usd_per_hour))
    by_fastest = (f"By the fastest repetitions, {text[0].lower()}{text[1:]}" for text in changes)
    return " ".join((fastest_text(rows), *by_fastest))


def summaries(result: BenchResult, slo: Slo | None = None) -> list[str]:
    """The summary of each workload, with its name if there are several."""
    lines = []
    every = workloads(result.rows)
    for workload in every:
        rows = [row for row in result.rows if row.load.workload == workload]
        text = summary_of(rows, result.usd_per_hour)
        text += f" {slo_summary(rows, slo)}" if slo else ""
        lines.append(f"{workload.name}: {text}" if every[1:] else text)
    return lines


def slo_summary(rows: Sequence[BenchRow], slo: Slo) -> str:
    """Which setting meets the objective at the highest speed, as one sentence."""
    allowed = winners(rows, slo)
    if not allowed:
        return f"No setting meets {slo.text} (mean times in seconds)."
    best = max(allowed, key=lambda one: one.best.tokens_per_second.value).best
    return (
        f"Within {slo.text} (mean times in seconds): {best.setting.text} serves up to "
        f"{best.load.concurrency:,} concurrent requests at "
        f"{best.tokens_per_second.value:,.0f} tokens/s."
    )


def _loads_text(loads: Sequence[int]) -> str:
    """``1 request``, ``8 to 64 requests``."""
    if len(loads) > 1:
        return f"{loads[0]:,} to {loads[-1]:,} requests"
    return f"{loads[0]:,} request{'s' if loads[0] > 1 else ''}"


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
    if times is None or not is_measured(times):
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


CONFIDENCE = "the 95 % confidence interval of the repetitions"
"""What ``Interval`` holds in a result of ``peagle bench``."""

SLOWEST_AND_FASTEST = "the slowest and the fastest repetition"
"""What low and high are in evidence."""

_LIMITS = Limits(size=LARGEST_EVIDENCE)


class _Details(BaseModel):
    """What a report shows of evidence in addition to its speeds; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    class Raw(BaseModel):
        drafter: str | None = None
        k: int = 0
        imposed_rates: tuple[float, ...] | None = None
        accepted_by_position: tuple[float, ...] = ()
        drafts: int = 0
        workload: str = "requests"
        fixed_length: bool = True
        concurrency: int = 0
        prompt_tokens: int | None = None
        output_tokens: int | None = None
        saturated: str = ""

        @property
        def key(self) -> tuple[Any, ...]:
            size = self.prompt_tokens, self.output_tokens
            return self.drafter, self.k, self.concurrency, *size

    device: str = ""
    commands: tuple[str, ...] = ()
    hosts: tuple[dict[str, Any], ...] = ()
    script: str = ""
    toolkit: str = ""
    sender: tuple[str, str] | None = None
    instance_type: str | None = None
    usd_per_hour: float | None = None
    price_source: str | None = None
    raw: tuple[Raw, ...] = ()


def read_result(path: Path) -> tuple[BenchResult, str]:
    """The result in the file, of ``peagle bench`` or evidence, and what its intervals are.

    Raises UserError for a file that is damaged, holds neither, or has impossible numbers.
    """
    try:
        content = read_bytes(path)
        document = json_reader.read(content, display_path(path), limits=_LIMITS)
        if not isinstance(document, dict) or not {"speeds", "rows"} & set(document):
            raise UserError(
                f"{display_path(path)} holds no measured speeds",
                "use the JSON result of a bench or a sweep, or evidence with speeds",
                "damaged-result",
            )
        if "speeds" in document:
            run = read_speeds(path, content)
            assert run is not None
            return _of_evidence(run, _Details.model_validate(document)), SLOWEST_AND_FASTEST
        result = TypeAdapter(BenchResult).validate_json(json.dumps(document))
    except BadFile as bad:
        raise UserError(bad.problem.text, bad.problem.fix, "damaged-result") from bad
    except (InvalidJson, ValidationError) as error:
        raise _unreadable(path, str(error).partition(" [type=")[0]) from error
    for problem in impossible(result.rows):
        raise _unreadable(path, problem)
    return result, CONFIDENCE


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"{display_path(path)} cannot be read: {why}", "measure again", "damaged-result"
    )


def _of_evidence(run: SpeedRun, details: _Details) -> BenchResult:
    raw = {one.key: one for one in details.raw}
    host = details.hosts[0] if details.hosts else {}
    cpus = host.get("cpus")
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
            instance_type=details.instance_type,
        ),
        started=run.date.isoformat(),
        toolkit=details.toolkit,
        sender=details.sender or (details.script, ""),
        host=BenchHost(
            system=str(host.get("system", "")),
            python=str(host.get("python", "")),
            cpus=cpus if isinstance(cpus, int) else 0,
            cpu=str(host.get("cpu", details.device)),
        ),
        command=details.commands,
        rows=tuple(_row(run, one, raw, details.usd_per_hour) for one in run.speeds),
        usd_per_hour=details.usd_per_hour,
        price_source=details.price_source,
    )


def _row(
    run: SpeedRun,
    speed: Speed,
    raw: dict[tuple[Any, ...], _Details.Raw],
    usd_per_hour: float | None,
) -> BenchRow:
    prompt, answer = speed.prompt_tokens or 0, speed.output_tokens or 0
    size = speed.prompt_tokens, speed.output_tokens
    more = raw.get((speed.drafter, speed.k, speed.concurrency, *size), _Details.Raw())
    imposed = more.imposed_rates or ()
    accepted = None
    if speed.acceptance_length is not None and speed.k:
        accepted = MeasuredAcceptance(
            speed.acceptance_length,
            more.accepted_by_position or imposed,
            more.drafts,
            "imposed" if run.synthetic else "measured",
        )
    value = speed.output_tokens_per_second
    workload = BenchWorkload(more.workload, Workload(prompt, answer), (), more.fixed_length)
    return BenchRow(
        setting=BenchSetting(speed.drafter, speed.k, imposed),
        load=BenchLoad(workload, speed.concurrency, speed.concurrency, speed.repetitions or 1),
        repetitions=(),
        tokens_per_second=Interval(value, speed.low or value, speed.high or value),
        ttft=_times(speed.ttft_seconds) or Times(0.0, 0.0, 0.0, 0.0, 0),
        itl=_times(speed.itl_seconds),
        tpot=_times(speed.tpot_seconds),
        prompt_tokens=prompt,
        output_tokens=answer,
        acceptance=accepted,
        usd_per_million_tokens=usd_per_million(usd_per_hour, value),
        saturated=more.saturated,
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
    found = []
    for instance in catalog.instances.instances:
        elsewhere = min(instance.prices, key=lambda one: one.usd_per_hour, default=None)
        price = price_of(instance, region).value or elsewhere
        if instance.gpu == gpu and instance.gpu_count >= count and price is not None:
            share = count / instance.gpu_count
            found.append((price.usd_per_hour * share, share, instance.type, price))
    if not found:
        return None
    usd, share, name, price = min(found, key=lambda one: (one[0], one[2]))
    part = "" if share == 1 else f"1/{1 / share:g} of "
    return usd, f"{part}{name} in {price.region}, {price.date.isoformat()}"


def with_price(result: BenchResult, usd_per_hour: float, source: str) -> BenchResult:
    """The result at this price."""
    rows = tuple(
        replace(
            row,
            usd_per_million_tokens=usd_per_million(usd_per_hour, row.tokens_per_second.value),
        )
        for row in result.rows
    )
    return replace(result, rows=rows, usd_per_hour=usd_per_hour, price_source=source)


def priced_result(
    result: BenchResult, catalog: Catalog, usd_per_hour: float | None = None
) -> BenchResult:
    """The result at this price, else at its own, else at the catalogue's for its GPUs."""
    if usd_per_hour is not None:
        return with_price(result, usd_per_hour, "given")
    server = result.server
    if result.usd_per_hour is not None or server.gpu is None:
        return result
    found = price_of_gpus(catalog, server.gpu, server.tensor_parallel_size or 1)
    return with_price(result, *found) if found else result
