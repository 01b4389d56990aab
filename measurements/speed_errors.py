"""The errors of the performance model on rows that it does not know, and the regret of its choice.

Each group of rows, such as all of one GPU, is estimated by
``peagle.speed.estimate.performance`` with constants and corrections from the other rows, and with
the acceptance length of each row.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from measurements.published_speeds import PUBLISHED, Published
from measurements.speed_fit import fitted
from measurements.speed_rows import COMPARED, Row, case_of, catalog, key_of, rows
from peagle.catalog.schema import SpeedRun
from peagle.catalog.tables import FittedTo, SpeedModel
from peagle.fit.estimate import cache_layout
from peagle.speed.acceptance import Acceptance, Performance
from peagle.speed.estimate import performance
from peagle.speed.ranking import Setting, rank_settings
from peagle.vllm.defaults import tokens_lost
from peagle.workload import Workload


@dataclass(frozen=True)
class Compared:
    """A row and its estimate."""

    row: Row | Published
    estimate: Performance

    @property
    def error(self) -> float:
        """Relative error of tokens per second, with its sign."""
        return (self.estimate.tokens_per_second or 0.0) / self.row.tokens_per_second - 1

    @property
    def first_error(self) -> float:
        """Relative error of the mean TTFT, with its sign."""
        return (self.estimate.ttft_seconds or 0.0) / (self.row.first or 1.0) - 1

    @property
    def between_error(self) -> float:
        """Relative error of the mean ITL, with its sign."""
        return (self.estimate.itl_seconds or 0.0) / (self.row.between or 1.0) - 1

    @property
    def inside(self) -> bool:
        """Whether the measured speed is within the estimate's range."""
        low, high = self.estimate.low or 0.0, self.estimate.high or 0.0
        return low <= self.row.tokens_per_second <= high


@dataclass(frozen=True)
class Errors:
    """Some estimates together: median and 90th percentile of the error's size, the share within
    the range, the median errors of TTFT and ITL and the 90th percentile of TTFT's (``None`` where
    unknown), and the regrets."""

    name: str
    rows: int
    median: float
    p90: float
    inside: float
    first: float | None
    first_p90: float | None
    between: float | None
    regrets: tuple[Regret, ...]

    @property
    def markdown(self) -> str:
        """A row of the table in docs/estimates.md."""
        first = "-" if self.first is None else f"{self.first:.0%}, {self.first_p90:.0%}"
        between = "-" if self.between is None else f"{self.between:.0%}"
        choice = "-"
        if self.regrets:
            worse = [regret for regret in self.regrets if regret.loss > 0.05]
            beyond = sum(not regret.within for regret in worse)
            mean = statistics.mean(regret.loss for regret in self.regrets)
            choice = f"{mean:.1%}; {len(worse)}, {beyond} of {len(self.regrets)}"
        cells = (self.name, self.rows, f"{self.median:.0%}", f"{self.p90:.0%}",
                 f"{self.inside:.0%}", first, between, choice)  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


def errors_of(name: str, compared: Sequence[Compared]) -> Errors:
    """The errors of these estimates."""
    sizes = sorted(abs(row.error) for row in compared)
    betweens = [abs(row.between_error) for row in compared if row.row.between]
    firsts = sorted(abs(row.first_error) for row in compared if row.row.first)
    return Errors(
        name=name,
        rows=len(sizes),
        median=statistics.median(sizes),
        p90=_p90(sizes),
        inside=sum(row.inside for row in compared) / len(sizes),
        first=statistics.median(firsts) if firsts else None,
        first_p90=_p90(firsts) if firsts else None,
        between=statistics.median(betweens) if betweens else None,
        regrets=tuple(regrets(compared)),
    )


def _p90(ascending: Sequence[float]) -> float:
    return ascending[min(round(0.9 * len(ascending)), len(ascending) - 1)]


@dataclass(frozen=True)
class Regret:
    """One choice: the estimated best setting, the measured best one, and the loss as a share.

    ``within``: the intervals of the repetitions of both overlap.
    """

    place: str
    chosen: str
    best: str
    loss: float
    within: bool


def held_out(
    of: Sequence[Row],
    model: SpeedModel,
    group: Callable[[Row], object],
    estimate: Sequence[Row] | None = None,
) -> list[Compared]:
    """Estimates of each group's rows with constants and corrections from the rows of ``of`` in the
    other groups. The rows to ``estimate`` are by default these."""
    compared = []
    to_estimate = of if estimate is None else estimate
    for left_out in dict.fromkeys(map(group, to_estimate)):
        others = [row for row in of if group(row) != left_out]
        constants = fitted(others, refitted(model, others))
        kept = {row.key for row in others}
        for row in to_estimate:
            if group(row) == left_out:
                compared.append(Compared(row, estimated(row, constants, _runs(row, kept))))
    return compared


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
    runs = []
    for run in catalog().speeds.get(row.pair, ()):
        speeds = tuple(speed for speed in run.speeds if key_of(run.file, speed) in kept)
        if speeds:
            runs.append(run.model_copy(update={"speeds": speeds}))
    return runs


def estimated(row: Row, model: SpeedModel, runs: Sequence[SpeedRun]) -> Performance:
    """The performance that the model gives for a row's engine, with the row's acceptance."""
    case = case_of(row.pair, row.gpu, row.drafter, row.k, row.gpus, row.graphs, row.load)
    workload = row.workload
    if row.cached:
        # The row has what a hit loses with a drafter taken off.
        blocks = [group.block_tokens for group in cache_layout(case).groups]
        lost = tokens_lost(case.drafter.method if case.drafter else None, blocks)
        workload = replace(workload, cached_prompt_tokens=row.cached + lost)
    return performance(
        case._replace(engine=case.engine._replace(vllm=row.vllm)),
        workload,
        row.load,
        Acceptance(row.length, "imposed" if row.k else "none", row.file),
        model,
        runs,
        {row.drafter},
        at_once=not row.turns,
    )


def regrets(compared: Iterable[Compared]) -> list[Regret]:
    """The regret of the choice at each place with at least two settings, as plans choose: of
    settings that tie by their estimates, the simplest."""
    return [_regret(settings, {}) for settings in _places(compared)]


def regrets_beside_measured(compared: Iterable[Compared]) -> list[Regret]:
    """The same where all settings but one are measured; once for each setting of a drafter."""
    losses = []
    for settings in _places(compared):
        measured = {setting: _measured(row) for setting, row in settings.items()}
        for setting in settings:
            others = {other: speed for other, speed in measured.items() if other != setting}
            if any(other.drafter == setting.drafter for other in others):
                losses.append(_regret(settings, others))
    return losses


def _places(compared: Iterable[Compared]) -> list[dict[Setting, Compared]]:
    """The rows by setting at each place with at least two. Of two engines with other CUDA graphs, a
    plan takes the one that is estimated faster."""
    places: dict[str, dict[Setting, Compared]] = defaultdict(dict)
    for row in sorted(compared, key=lambda row: row.estimate.tokens_per_second or 0.0):
        places[row.row.place][Setting(drafter=row.row.drafter, k=row.row.k)] = row
    return [settings for settings in places.values() if len(settings) > 1]


def _measured(compared: Compared) -> Performance:
    row = compared.row
    acceptance = Acceptance(row.length, "imposed", "measured")
    return Performance("measured", acceptance, "measured", row.tokens_per_second, row.low)


def _regret(settings: dict[Setting, Compared], measured: dict[Setting, Performance]) -> Regret:
    """The regret of the choice between these settings, of which some are ``measured``."""
    speeds = {setting: row.estimate for setting, row in settings.items()} | measured
    chosen = settings[rank_settings(speeds, "p-eagle").tied[0]].row
    best = max((row.row for row in settings.values()), key=lambda row: row.tokens_per_second)
    loss = 1 - chosen.tokens_per_second / best.tokens_per_second
    within = chosen.tokens_per_second >= best.low
    return Regret(best.place, chosen.setting, best.setting, loss, within)


def published(model: SpeedModel) -> dict[str, list[Compared]]:
    """The published rows and their estimates by source, with the evidence of their pairs."""
    by_source: dict[str, list[Compared]] = defaultdict(list)
    for row in PUBLISHED:
        estimate = performance(
            row.case(),
            Workload(row.prompt, row.answer),
            row.load,
            Acceptance(row.length, "published" if row.k else "none", row.source),
            model,
            catalog().speeds.get(row.pair, ()),
            {row.drafter},
        )
        by_source[f"published: {row.group}"].append(Compared(row, estimate))
    return dict(by_source)


def not_fitted(of: Sequence[Row], model: SpeedModel) -> dict[str, list[Compared]]:
    """The rows of ``COMPARED`` and of other vLLM versions, with the constants and corrections of
    ``of``, and apart those while kernels were compiled."""
    versions = [row for row in rows() if row.vllm != model.vllm]
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in (*rows(COMPARED), *versions):
        if row.vllm != model.vllm:
            name = "another vLLM version"
        else:
            name = "single prompts of peagle bench, not fitted"
        compiling = row.compiling and row.file.startswith("bench")
        groups[f"{name}, while kernels compile" if compiling else name].append(row)
    return {name: _compared(groups[name], of, model) for name in sorted(groups, reverse=True)}


def conversation_rows(of: Sequence[Row], model: SpeedModel) -> list[Compared]:
    """The conversations of ``peagle bench``, with the constants and corrections of ``of``."""
    return _compared(rows(turns=True), of, model)


def repeated(model: SpeedModel) -> list[Compared]:
    """The conversations that several hosts measured, each with the times of the host before it as
    its estimate: as near as measurements come to each other."""
    before: dict[object, Row] = {}
    compared = []
    for row in rows(turns=True):
        setting = row.pair, row.gpu, row.drafter, row.k, row.load, row.graphs
        if other := before.get(setting):
            estimate = estimated(row, model, ())._replace(
                tokens_per_second=other.tokens_per_second,
                low=other.low,
                high=other.tokens_per_second,
                ttft_seconds=other.first,
                itl_seconds=other.between,
            )
            compared.append(Compared(row, estimate))
        before[setting] = row
    return compared


def _compared(others: Iterable[Row], of: Sequence[Row], model: SpeedModel) -> list[Compared]:
    kept = {row.key for row in of}
    return [Compared(row, estimated(row, model, _runs(row, kept))) for row in others]


HELD_OUT: dict[str, Callable[[Row], object]] = {
    "one GPU left out": lambda row: row.gpu,
    "one pair left out": lambda row: row.pair,
    "one setting left out": lambda row: (row.pair, row.gpu, row.drafter, row.k),
    "one load left out": lambda row: row.load,
    "one request size left out": lambda row: (row.pair, row.gpu, row.prompt, row.answer),
}
