"""The verdict on speculation, as data; ``peagle.speed.decision`` makes it."""

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from peagle.catalog.tables import NotNegative, Positive, Version
from peagle.speed.models import AcceptanceBasis, Basis, Workload

VERDICT_FORMAT = 1
"""The value of ``Verdict.format``, incremented when earlier files can no longer be read."""

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Load = Annotated[float, Field(ge=1, le=2**31, allow_inf_nan=False)]
Line = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Text for people."""

FARTHEST = 2.0
"""A verdict answers for loads, prompts and outputs that differ by at most this factor from its own:
beyond it another setting is often the fastest."""


class VerdictEntry(BaseModel):
    """Immutable and strict; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Setting(VerdictEntry):
    """What to draft with, by its name in the catalogue, and how much; without a drafter K is 0."""

    drafter: Line | None
    k: NotNegative

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.drafter is None) != (self.k == 0):
            raise ValueError("a drafter needs a K of at least 1, and a K a drafter")
        return self

    @property
    def text(self) -> str:
        """``p-eagle K=3``, or ``no speculation``."""
        return "no speculation" if self.drafter is None else f"{self.drafter} K={self.k}"


NO_SPECULATION = Setting(drafter=None, k=0)
"""The target without speculation."""


class SettingSpeed(VerdictEntry):
    """One setting at one load; the numbers are those of ``Performance``.

    ``regret_percent`` is what it loses against the fastest setting there; ``None`` where unknown,
    and for an estimate that a measurement of the drafter's other K, or of a winner, overrules.
    ``break_even_acceptance_length`` is the mean number of tokens per step above which it is
    faster than the target alone; ``None`` without speculation, where unknown, and where not even K
    accepted drafts in each step suffice.
    ``extrapolated``: K is above every K of the drafter with a known acceptance.
    """

    setting: Setting
    basis: Basis
    tokens_per_second: Amount | None
    low: Amount | None
    high: Amount | None
    ttft_seconds: Amount | None
    itl_seconds: Amount | None
    usd_per_million_tokens: Amount | None
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    acceptance_basis: AcceptanceBasis
    break_even_acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None
    regret_percent: Percent | None
    source: Line
    extrapolated: bool = False


class LoadVerdict(VerdictEntry):
    """The settings at one load. ``best`` is the simplest of those that tie with the fastest,
    ``ties`` are the others; ``None`` where no speed is known. ``tensor_parallel_size`` is that of
    a plan for this load, ``None`` where it is the verdict's."""

    concurrency: Annotated[int, Field(ge=1, le=2**31)]
    tensor_parallel_size: Positive | None = None
    best: Setting | None
    ties: tuple[Setting, ...]
    speeds: tuple[SettingSpeed, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rated = [speed.setting for speed in self.speeds if speed.tokens_per_second is not None]
        if len({speed.setting for speed in self.speeds}) < len(self.speeds):
            raise ValueError("a setting is there twice")
        chosen = [self.best, *self.ties] if self.best else list(self.ties)
        if any(setting not in rated for setting in chosen) or (rated and self.best is None):
            raise ValueError("best and ties are not among the settings with a speed")
        return self

    def speed(self, setting: Setting | None) -> SettingSpeed | None:
        """That setting here; ``None`` if it was not compared."""
        return next((speed for speed in self.speeds if speed.setting == setting), None)


class VerdictCrossover(VerdictEntry):
    """The load at which speculation, with its best setting, ``stops`` or ``starts`` to pay.

    Between ``low`` and ``high`` requests both are about equally fast. ``usd_per_million_tokens``
    is what a million output tokens cost there, either way.
    """

    direction: Literal["stops", "starts"]
    requests: Load
    low: Load
    high: Load
    usd_per_million_tokens: Amount | None
    basis: Basis


class WorkloadVerdict(VerdictEntry):
    """The verdict for requests of one size.

    ``robust`` is the setting to use if the load is not known: the one with the smallest worst-case
    loss over these loads (minimax regret), which is ``robust_regret_percent``.
    """

    name: Line
    prompt_tokens: Positive
    cached_prompt_tokens: NotNegative = 0
    shared_prompt_tokens: NotNegative = 0
    output_tokens: Positive
    loads: Annotated[tuple[LoadVerdict, ...], Field(min_length=1)]
    crossovers: tuple[VerdictCrossover, ...]
    robust: Setting | None
    robust_regret_percent: Percent | None

    @property
    def workload(self) -> Workload:
        """The size of its requests."""
        cached, shared = self.cached_prompt_tokens, self.shared_prompt_tokens
        return Workload(self.prompt_tokens, self.output_tokens, cached, shared)


class VerdictChange(VerdictEntry):
    """What would change the verdict: another acceptance, the default context, evidence that is
    missing, or another version of vLLM."""

    kind: Literal["acceptance", "context", "evidence", "version"]
    text: Line


class Verdict(VerdictEntry):
    """The verdict on a target on one kind of GPU; ``peagle.render.plan_file`` reads and writes
    it. Speeds are of one engine; ``usd_per_hour`` is the price of one whole instance."""

    format: Literal[1] = 1
    target: Line
    gpu: Line
    tensor_parallel_size: Positive
    vllm: Version
    max_model_len: Positive | None = None
    instance_type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9\-]+\.[a-z0-9]+$")]
    gpu_count: Positive
    region: Line
    usd_per_hour: Amount | None
    price_date: Line | None
    workloads: Annotated[tuple[WorkloadVerdict, ...], Field(min_length=1)]
    changes: tuple[VerdictChange, ...]

    def __repr__(self) -> str:
        sizes = f"{len(self.workloads)} sizes of requests"
        loads = ", ".join(str(load.concurrency) for load in self.workloads[0].loads)
        return f"<Verdict {self.target} on {self.gpu}: {sizes}, {loads} at a time>"

    def at(self, workload: Workload | None, load: float) -> tuple[WorkloadVerdict, LoadVerdict]:
        """The verdict for the nearest size of requests (``None``: the first) and, of it, for the
        nearest load; both nearest by ratio."""
        planned = self.workloads[0].workload if workload is None else workload

        def distance(verdict: WorkloadVerdict) -> float:
            size = verdict.workload
            ratios = (
                size.prompt_tokens / planned.prompt_tokens,
                size.new_prompt_tokens / planned.new_prompt_tokens,
                size.output_tokens / planned.output_tokens,
            )
            return sum(abs(math.log(ratio)) for ratio in ratios)

        chosen = min(self.workloads, key=distance)
        loads = chosen.loads
        return chosen, min(loads, key=lambda at: abs(math.log(at.concurrency / max(load, 1))))


def is_covered(size: WorkloadVerdict, entry: LoadVerdict, planned: Workload, load: float) -> bool:
    """Whether the verdict's ``entry`` for ``size`` answers for ``load`` such requests."""
    ratios = (
        load / entry.concurrency,
        planned.prompt_tokens / size.prompt_tokens,
        planned.new_prompt_tokens / size.workload.new_prompt_tokens,
        planned.output_tokens / size.output_tokens,
    )
    return all(1 / FARTHEST <= ratio <= FARTHEST for ratio in ratios)
