"""Reads results from files: of ``peagle bench``, or evidence with speeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from peagle.bench.evidence import impossible
from peagle.bench.models import (
    BenchedServer,
    BenchHost,
    BenchLoad,
    BenchResult,
    BenchRow,
    BenchSetting,
    BenchWorkload,
    Interval,
    MeasuredAcceptance,
    Times,
)
from peagle.bench.report import CONFIDENCE
from peagle.catalog.documents import LARGEST_EVIDENCE, BadFile, display_path, read_bytes
from peagle.catalog.evidence import read_speeds
from peagle.catalog.schema import NO_GPU, Seconds, Speed, SpeedRun
from peagle.errors import UserError
from peagle.speed.models import Workload
from peagle.text import usd_per_million
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits

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
