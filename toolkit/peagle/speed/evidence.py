"""The speed of one engine according to evidence, at a measured load or between two of them.

No speed is claimed below the smallest or above the largest measured load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from peagle.catalog.schema import Drafter, Speed, SpeedRun
from peagle.text import format_concurrency
from peagle.vllm import versions

TARGET_ALONE: frozenset[str | None] = frozenset({None})
"""The drafter name of a run's speeds of the target alone."""


@dataclass(frozen=True)
class Estimate:
    """Output tokens per second of one engine with this K at ``load`` concurrent requests.

    ``between`` are the two measured loads around it, ``None`` if the load itself is measured.
    ``tokens`` are the prompt and output tokens of one request.
    """

    tokens_per_second: float
    k: int
    load: float
    run: SpeedRun
    between: tuple[int, int] | None = None
    acceptance_length: float | None = None
    tokens: tuple[int | None, int | None] = (None, None)

    @property
    def speed_text(self) -> str:
        """``10,732 tokens/s``."""
        return f"{self.tokens_per_second:,.0f} tokens/s"

    @property
    def source(self) -> str:
        """The measurement as text."""
        run = self.run
        text = (
            f"measured on {run.tensor_parallel_size} x {run.gpu} with vLLM {run.vllm}, "
            f"{run.date.isoformat()}"
        )
        prompt, answer = self.tokens
        text += f", prompts of {prompt:,} tokens" if prompt else ""
        text += f", outputs of {answer:,} tokens" if answer else ""
        if run.synthetic and self.k:
            text += ", synthetic acceptance"
            text += f" of {self.acceptance_length:.2f}" if self.acceptance_length else ""
        if self.between is not None:
            below, above = self.between
            text += f"; interpolated between {below:,} and {format_concurrency(above)}"
        return text


@dataclass(frozen=True)
class SpeedComparison:
    """One run at one load: every measured K of a drafter, and the target alone."""

    by_k: dict[int, Estimate]
    alone: Estimate | None

    @property
    def fastest(self) -> Estimate:
        """The K with the most tokens per second; the smaller K on a tie."""
        return max(self.by_k.values(), key=lambda e: (e.tokens_per_second, -e.k))


def runs_on(
    runs: Iterable[SpeedRun], gpu: str, tensor_parallel_size: int, vllm: str
) -> tuple[SpeedRun, ...]:
    """The runs on these GPUs, best first: the planned vLLM, then trained heads, then the newest."""

    def preference(run: SpeedRun) -> tuple[bool, bool, int]:
        return versions.compare(run.vllm, vllm) != 0, run.synthetic, -run.date.toordinal()

    gpus = gpu, tensor_parallel_size
    alike = (run for run in runs if (run.gpu, run.tensor_parallel_size) == gpus)
    return tuple(sorted(alike, key=preference))


def names_in_runs(drafter: Drafter | None, own: bool) -> frozenset[str | None]:
    """The names of this drafter in runs; the user's own head has only its location."""
    if drafter is None:
        return TARGET_ALONE
    known = {drafter.weights} if own else {drafter.weights, drafter.name}
    return frozenset(name for name in known if name is not None)


def compare(
    runs: Iterable[SpeedRun],
    names: Collection[str | None],
    load: float,
    *,
    k: int | None = None,
    k_trained: int | None = None,
) -> SpeedComparison | None:
    """The comparison of the first run that measured the drafter; ``None`` without one.

    With ``k`` only a run that measured that K; K above ``k_trained`` is ignored. Speeds of
    different runs are not compared.
    """
    for run in runs:
        for rows in _comparable(run):
            by_k = {
                estimate.k: estimate
                for estimate in _estimates(run, rows, names, load)
                if k_trained is None or estimate.k <= k_trained
            }
            if by_k and (k is None or k in by_k):
                return SpeedComparison(by_k, next(_estimates(run, rows, TARGET_ALONE, load), None))
    return None


def measured_loads(runs: Iterable[SpeedRun], names: Collection[str | None]) -> tuple[int, ...]:
    """The measured loads of this drafter, ascending."""
    rows = (row for run in runs for row in run.speeds if row.drafter in names)
    return tuple(sorted({row.concurrency for row in rows}))


def _comparable(run: SpeedRun) -> list[tuple[Speed, ...]]:
    """The rows of a run; grouped by request size if it has one load at several sizes."""
    loads = [(row.drafter, row.k, row.concurrency) for row in run.speeds]
    if len(set(loads)) == len(loads):
        return [run.speeds]
    sizes = dict.fromkeys((row.prompt_tokens, row.output_tokens) for row in run.speeds)
    return [
        tuple(row for row in run.speeds if (row.prompt_tokens, row.output_tokens) == size)
        for size in sizes
    ]


def _estimates(
    run: SpeedRun, rows: Collection[Speed], names: Collection[str | None], load: float
) -> Iterator[Estimate]:
    """One estimate for every K measured at this load or at loads around it."""
    ours = [row for row in rows if row.drafter in names]
    for k in sorted({row.k for row in ours}):
        curve = sorted((r for r in ours if r.k == k), key=lambda r: r.concurrency)
        below = next((row for row in reversed(curve) if row.concurrency <= load), None)
        above = next((row for row in curve if row.concurrency >= load), None)
        if below is not None and above is not None:
            yield _between(run, below, above, load)


def _between(run: SpeedRun, below: Speed, above: Speed, load: float) -> Estimate:
    """Linear interpolation between two measured loads."""
    speed, around = below.output_tokens_per_second, None
    if below.concurrency != above.concurrency:
        around = (below.concurrency, above.concurrency)
        share = (load - below.concurrency) / (above.concurrency - below.concurrency)
        speed += share * (above.output_tokens_per_second - speed)
    tokens = (below.prompt_tokens, below.output_tokens)
    return Estimate(speed, below.k, load, run, around, below.acceptance_length, tokens)
