"""Fit the performance model's constants to the evidence, and show the errors of its estimates.

    python -m benchmarks.speed_model            # tables of errors
    python -m benchmarks.speed_model --write    # and model_catalog/speed_model.yaml

The errors are those of ``peagle.speed.estimate.performance`` on rows that neither its constants nor
its correction know: all rows of a GPU, of a pair, of one setting (drafter and K) of a pair on a
GPU, of another vLLM version, and published rows. The acceptance length is that of the row.

The regret of a choice: how much slower the setting with the best estimate is than the best measured
one of the same pair, GPU, request size and load.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.published_speeds import PUBLISHED
from benchmarks.speed_fit import Row, case_of, catalog, constants_text, fitted, key_of, rows
from peagle.catalog.schema import SpeedRun
from peagle.catalog.speed_model import FittedTo, SpeedModel
from peagle.speed.estimate import performance
from peagle.speed.models import Acceptance, Performance, Workload

FILE = Path(__file__).parents[1] / "model_catalog" / "speed_model.yaml"
SCRIPT = "benchmarks/speed_model.py"


@dataclass(frozen=True)
class Compared:
    """A row and its estimate."""

    row: Row
    estimate: Performance

    @property
    def error(self) -> float:
        """Relative error of tokens per second, with its sign."""
        return (self.estimate.tokens_per_second or 0.0) / self.row.tokens_per_second - 1

    @property
    def first_error(self) -> float:
        """Relative error of the mean TTFT, with its sign."""
        return (self.estimate.ttft_seconds or 0.0) / self.row.first - 1

    @property
    def inside(self) -> bool:
        """Whether the measured speed is within the estimate's range."""
        low, high = self.estimate.low or 0.0, self.estimate.high or 0.0
        return low <= self.row.tokens_per_second <= high


@dataclass(frozen=True)
class Errors:
    """Size of the errors of some estimates: median, 90th percentile, share within the range."""

    name: str
    rows: int
    median: float
    p90: float
    inside: float

    @classmethod
    def of(cls, name: str, sizes: Sequence[float], inside: Sequence[bool]) -> Errors:
        """From the errors and whether each row is within its range."""
        size = sorted(map(abs, sizes))
        p90 = size[min(round(0.9 * len(size)), len(size) - 1)]
        return cls(name, len(size), statistics.median(size), p90, sum(inside) / len(inside))

    def __str__(self) -> str:
        return (
            f"{self.name:44} {self.rows:4}  median {self.median:4.0%}  p90 {self.p90:4.0%}  "
            f"in range {self.inside:4.0%}"
        )


@dataclass(frozen=True)
class Regret:
    """One choice: the estimated best setting, the measured best one, and the loss as a share.

    ``within``: the intervals of the repetitions of both overlap.
    """

    place: tuple[str, str, int, int, int]
    chosen: str
    best: str
    loss: float
    within: bool


def held_out(
    of: Sequence[Row], model: SpeedModel, group: Callable[[Row], object]
) -> list[Compared]:
    """Estimates of each group's rows with constants and corrections from the other rows."""
    found = []
    for left_out in dict.fromkeys(map(group, of)):
        others = [row for row in of if group(row) != left_out]
        constants = fitted(others, refitted(model, others))
        kept = {row.key for row in others}
        for row in of:
            if group(row) == left_out:
                found.append(Compared(row, estimated(row, constants, _runs(row, kept))))
    return found


def refitted(model: SpeedModel, of: Sequence[Row]) -> SpeedModel:
    """``model`` as fitted to these rows."""
    counted = Counter((row.file, row.pair, row.gpu) for row in of)
    evidence = tuple(
        FittedTo(file=file, pair=pair, gpu=gpu, rows=number)
        for (file, pair, gpu), number in sorted(counted.items())
    )
    return model.model_copy(update={"evidence": evidence})


def _runs(row: Row, kept: Collection[tuple[object, ...]]) -> list[SpeedRun]:
    """The runs of the row's pair with only the rows ``kept``."""
    found = []
    for run in catalog().speeds.get(row.pair, ()):
        speeds = tuple(one for one in run.speeds if key_of(run.file, one) in kept)
        if speeds:
            found.append(run.model_copy(update={"speeds": speeds}))
    return found


def estimated(row: Row, model: SpeedModel, runs: Sequence[SpeedRun]) -> Performance:
    """The performance that the model gives for a row's engine, with the row's acceptance."""
    case = case_of(row.pair, row.gpu, row.drafter, row.k)
    return performance(
        replace(case, engine=replace(case.engine, vllm=row.vllm)),
        Workload(row.prompt, row.answer),
        row.load,
        Acceptance(row.length, "imposed" if row.k else "none", row.file),
        model,
        runs,
        {row.drafter},
    )


def regrets(compared: Iterable[Compared]) -> list[Regret]:
    """The regret of the choice at each place with at least two settings."""
    places: dict[tuple[str, str, int, int, int], list[Compared]] = defaultdict(list)
    for one in compared:
        places[one.row.place].append(one)
    found = []
    for place, choices in places.items():
        if len(choices) < 2:
            continue
        chosen = max(choices, key=lambda one: one.estimate.tokens_per_second or 0.0).row
        best = max(choices, key=lambda one: one.row.tokens_per_second).row
        loss = 1 - chosen.tokens_per_second / best.tokens_per_second
        within = chosen.tokens_per_second >= best.low
        found.append(Regret(place, chosen.setting, best.setting, loss, within))
    return found


def published(model: SpeedModel) -> list[tuple[str, str, float, bool]]:
    """Source, GPU, error and whether it is in range, of each published row."""
    found = []
    for row in PUBLISHED:
        runs = catalog().speeds.get(row.pair, ())
        estimate = performance(
            row.case(),
            Workload(row.prompt, row.answer),
            row.load,
            Acceptance(row.length, "published" if row.k else "none", row.source),
            model,
            runs,
            {row.drafter},
        )
        error = (estimate.tokens_per_second or 0.0) / row.tokens_per_second - 1
        inside = (estimate.low or 0.0) <= row.tokens_per_second <= (estimate.high or 0.0)
        found.append((row.source, row.gpu, error, inside))
    return found


HELD_OUT: dict[str, Callable[[Row], object]] = {
    "one GPU left out": lambda row: row.gpu,
    "one pair left out": lambda row: row.pair,
    "one setting left out": lambda row: (row.pair, row.gpu, row.drafter, row.k),
    "one request size left out": lambda row: (row.pair, row.gpu, row.prompt, row.answer),
}


def errors_of(name: str, compared: Sequence[Compared]) -> Errors:
    """The errors of these estimates."""
    return Errors.of(name, [one.error for one in compared], [one.inside for one in compared])


def tables(of: Sequence[Row], model: SpeedModel) -> Iterable[str]:
    """All tables, line by line. ``model`` is fitted to ``of``."""
    others = [row for row in rows() if row.vllm != model.vllm]
    compared = {name: held_out(of, model, group) for name, group in HELD_OUT.items()}
    kept = {row.key for row in of}
    compared["another vLLM version"] = [
        Compared(row, estimated(row, model, _runs(row, kept))) for row in others
    ]
    for name, found in compared.items():
        if not found:
            continue
        first = statistics.median(abs(one.first_error) for one in found)
        yield f"{errors_of(name, found)}  TTFT median {first:4.0%}"
        for place in sorted({(one.row.pair, one.row.gpu) for one in found}):
            part = [one for one in found if (one.row.pair, one.row.gpu) == place]
            yield str(errors_of(f"  {', '.join(place)}", part))
    rows_of = published(model)
    for source in dict.fromkeys((source, gpu) for source, gpu, _, _ in rows_of):
        part_of = [one for one in rows_of if one[:2] == source]
        name = f"published: {', '.join(source)}"[:44]
        yield str(Errors.of(name, [one[2] for one in part_of], [one[3] for one in part_of]))
    for name in HELD_OUT:
        yield from _regret_lines(name, regrets(compared[name]))


def _regret_lines(name: str, found: Sequence[Regret]) -> Iterable[str]:
    bad = [one for one in found if one.loss > 0.05]
    outside = [one for one in bad if not one.within]
    mean = statistics.mean(one.loss for one in found)
    yield (
        f"regret, {name}: {len(found)} choices, mean {mean:.1%}, {len(bad)} above 5 %, "
        f"{len(outside)} of them beyond the measurements' interval"
    )
    for one in sorted(bad, key=lambda one: -one.loss):
        pair, gpu, prompt, answer, load = one.place
        yield (
            f"  {pair.rpartition('/')[2]:28} {gpu} {prompt}+{answer} at {load:3}: "
            f"{one.chosen} for {one.best}, {one.loss:.1%}"
        )


def written(model: SpeedModel) -> str:
    """speed_model.yaml with these constants; the GPUs stay as they are."""
    gpus = FILE.read_text(encoding="utf-8").partition("\ngpus:\n")[2]
    lines = [
        f"# Written by {SCRIPT}, except for gpus: data sheets, dense rates without sparsity.",
        f"script: {SCRIPT}",
        f"fitted: {datetime.datetime.now(datetime.UTC).date().isoformat()}",
        f'vllm: "{model.vllm}"',
        "evidence:",
        *(
            f"  - {{file: {one.file}, pair: {one.pair}, gpu: {one.gpu}, rows: {one.rows}}}"
            for one in model.evidence
        ),
        "constants:",
        *(f"  {name}: {value:.2e}" for name, value in constants_text(model.constants).items()),
        f"request_exponent: {model.request_exponent}",
        f"token_exponent: {model.token_exponent}",
        f"decay: {model.decay}",
        "ranges: "
        + "{"
        + ", ".join(f"{k}: {v}" for k, v in model.ranges.model_dump().items())
        + "}",
        "gpus:",
    ]
    return "\n".join(lines) + "\n" + gpus


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    known = catalog().speed_model
    of = [row for row in rows() if row.vllm == known.vllm]
    options = parser.parse_args()
    model = fitted(of, refitted(known, of))
    for line in tables(of, model):
        print(line, flush=True)
    if options.write:
        FILE.write_text(written(model), encoding="utf-8")
        print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
