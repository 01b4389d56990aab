"""Plan and its parts. No behavior."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from peagle.findings import Finding, severity
from peagle.fit.models import Fit
from peagle.options import Frozen, Options, Overrides
from peagle.planning.company import Company
from peagle.planning.copies import Copies
from peagle.planning.operation_model import Limit, Observe, Rollout, Scaling
from peagle.speed.models import AcceptanceBasis, Basis, Workload, WorkloadName
from peagle.speed.slo import Slo
from peagle.text import format_usd, k_text

T = TypeVar("T")

PLAN_FORMAT = 1
"""Incremented when plan files of earlier versions can no longer be read."""

EXECUTION_ROLE = "${ExecutionRoleArn}"
"""Placeholder for the role, which is known only when the plan is applied."""

MODEL_BUCKET = "${ModelBucket}"
"""Placeholder for the bucket to which local weights are uploaded."""


class Pins(Frozen):
    """What the container accepts from the mounted folder: SHA-256s in hex, ``None`` or empty where
    nothing is pinned yet.

    ``weights`` is the manifest of ``peagle weights sync``, which lists the files. ``warm`` are the
    archives of compiled code that may be restored; with ``any_warm`` each of them may be.
    """

    weights: str | None = None
    warm: tuple[str, ...] = ()
    any_warm: bool = False


class Reason(Frozen):
    """A decision made by planning: ``what`` has ``value``, ``because``."""

    what: str
    value: str
    because: str


class Weights(Frozen):
    """The source of weights, and their path in the container.

    ``hub``: ``location`` is a Hugging Face id, downloaded by the engine at ``revision``.
    ``s3``: ``location`` is an ``s3://`` prefix that SageMaker mounts, or that the engine streams.
    ``directory``: ``location`` is a folder on the user's machine (``catalog:...`` for one that
    ships with the catalogue); it is uploaded to ``s3_uri`` before the model is created.
    ``image``: the plan's image contains them, from ``location``; nothing is uploaded or mounted.
    ``engine_path`` is the argument for vLLM: the id, the folder inside the container, or the
    ``s3://`` prefix that it streams.
    """

    kind: Literal["hub", "s3", "directory", "image"]
    location: str
    revision: str | None = None
    s3_uri: str | None = None
    engine_path: str

    @property
    def streamed(self) -> bool:
        """Whether the engine reads them from S3 itself."""
        return self.kind == "s3" and self.engine_path == self.location


class TargetChoice(Frozen):
    """The target as planned."""

    id: str
    licence: str
    weight_bytes: int
    weights: Weights


class DrafterChoice(Frozen):
    """The drafter as planned. ``weights`` is ``None`` for draftless methods."""

    name: str
    id: str
    licence: str | None
    weights: Weights | None


FloorSource = Literal["catalogue", "break-even", "option"]
"""Where the least acceptance length of a proof comes from. ``break-even``: from the performance
model; with less, the target alone is faster at the planned load."""


class Speculation(Frozen):
    """``method`` and the rest as in vLLM's ``--speculative-config``; ``k`` is
    ``num_speculative_tokens``. P-EAGLE is ``eagle3`` with ``parallel_drafting``.
    ``acceptance_floor`` is the mean acceptance length below which a deployment is not proved, and
    ``acceptance_floor_source`` its origin.
    """

    method: str
    parallel_drafting: bool
    k: int
    settings: dict[str, Any] = {}
    acceptance_floor: float | None = None
    acceptance_floor_source: FloorSource | None = None

    @property
    def floor_source(self) -> FloorSource | None:
        """The origin of the floor, also in a plan of an earlier version."""
        source = self.acceptance_floor_source
        return source or ("catalogue" if self.acceptance_floor is not None else None)


class RuntimeChoice(Frozen):
    """vLLM version, image, CUDA, and the host AMI (``None``: SageMaker's default)."""

    vllm: str
    image: str
    cuda: str
    ami: str | None


class Mount(Frozen):
    """An S3 prefix that SageMaker mounts as a folder. ``channel`` is ``None`` for
    ``/opt/ml/model``, else the folder is ``/opt/ml/additional-model-data-sources/<channel>``."""

    channel: str | None
    s3_uri: str


class SpeedEstimate(Frozen):
    """The speed at the planned load, of all instances together: output tokens per second with their
    range ``low`` to ``high``, and mean seconds to the first token and between two outputs of one
    request. All numbers are ``None`` where ``basis`` is ``unknown``.

    ``acceptance_length`` is the assumed mean number of tokens per step, 1 without speculation.
    ``source`` names the measurement, or what the estimate rests on. ``cached_prompt_tokens`` of
    each prompt are expected in the prefix cache, and the KV cache of each engine keeps so many
    ``conversations``, ``None`` without a cached prefix. ``extrapolated``: K is above every K of the
    drafter with a known acceptance.
    """

    tokens_per_second: float | None
    low: float | None
    high: float | None
    basis: Basis
    ttft_seconds: float | None
    itl_seconds: float | None
    usd_per_million_tokens: float | None
    acceptance_length: float | None
    acceptance_basis: AcceptanceBasis
    source: str
    cached_prompt_tokens: int = 0
    conversations: int | None = None
    extrapolated: bool = False


class Batch(Frozen):
    """A number of requests to be done, ``within_seconds`` if that is required: the seconds that it
    takes and the USD that it costs, with the start of the instances in ``start_seconds``; ``None``
    where the speed is unknown.
    """

    requests: int = Field(ge=1)
    within_seconds: int | None = None
    start_seconds: int = 0
    seconds: float | None = None
    usd: float | None = None


class Alternative(SpeedEstimate):
    """Instances, drafter and K for the same load, with their speed. Prices are of all instances
    together.

    ``copies`` are the engines on each, ``None`` for one without inference components.
    ``drafter`` is its name, ``None`` without speculation, where ``k`` is 0. ``verified``: the speed
    is known, and meets what the options require. ``speed_source`` is ``source`` under its earlier
    name, ``None`` where the speed is unknown. ``batch`` is what a batch takes and costs on them.
    """

    instance_type: str
    instance_count: int
    copies: int | None = None
    gpu: str
    tensor_parallel_size: int
    price_per_hour_usd: float | None
    max_concurrency: float
    kv_cache_tokens: int
    drafter: str | None
    k: int
    verified: bool
    speed_source: str | None
    batch: Batch | None = None

    @property
    def engines(self) -> int:
        """How many engines share the load."""
        return self.instance_count * (self.copies or 1)


class ProofPlan(Frozen):
    """The prompts whose drafts must be accepted before the endpoint counts as proved.

    ``source`` is where the drafts are counted: the engine's counters, which images of this toolkit
    expose, or vLLM's statistics in the endpoint's log. Several instances are proved from the log.
    """

    prompts: tuple[str, ...]
    chat: bool
    max_tokens: int
    source: Literal["counters", "log"] = "counters"


class Plan(Frozen):
    """The complete, immutable plan; ``peagle.render.plan_file`` writes and reads it.

    ``engine_arguments`` is vLLM's argv; ``environment`` is the same for the container. Neither
    contains a secret: ``DescribeModel`` returns the environment.
    ``alternatives`` are the best instances for this load, the planned one among them unless the
    user named another; ``copies`` of the engine share each instance, ``None`` for one engine
    without inference components; ``without_speculation`` is the target alone on the user's
    instance type, else on its own best. Requests have ``prompt_tokens``, of which
    ``cached_prompt_tokens`` are in the prefix cache (of these ``shared_prompt_tokens`` once for all
    conversations), and ``output_tokens``, by the preset ``workload`` if there is one. ``limit`` is
    when the deployment ends. ``options`` are what the user asked for. These keys, ``speed`` and
    ``slo`` are ``None`` or empty where the request has none.
    """

    format: int = PLAN_FORMAT
    name: str
    pair: str
    region: str
    target: TargetChoice
    drafter: DrafterChoice | None
    speculation: Speculation | None
    runtime: RuntimeChoice
    instance_type: str
    instance_count: int = Field(ge=1)
    copies: Copies | None = None
    max_model_len: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    engine_arguments: tuple[str, ...]
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    download_timeout_seconds: int = Field(ge=60, le=3600)
    startup_timeout_seconds: int = Field(ge=60, le=3600)
    fit: Fit
    price_per_hour_usd: float | None
    price_date: str | None
    workload: WorkloadName | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int = 0
    shared_prompt_tokens: int = 0
    output_tokens: int | None = None
    batch: Batch | None = None
    slo: Slo | None = None
    speed: SpeedEstimate | None = None
    without_speculation: Alternative | None = None
    alternatives: tuple[Alternative, ...] = ()
    proof: ProofPlan
    options: Options
    overrides: Overrides = Overrides()
    pins: Pins = Pins()
    rollout: Rollout | None = None
    scaling: Scaling | None = None
    company: Company = Company()
    limit: Limit | None = None
    observe: Observe | None = None
    findings: tuple[Finding, ...]
    reasons: tuple[Reason, ...]

    def __repr__(self) -> str:
        method = k_text(self.speculation.k if self.speculation else None)
        price = self.price_per_hour_usd
        cost = "unknown price" if price is None else f"{format_usd(price)} per hour"
        where = f"{self.instance_count} x {self.instance_type} in {self.region}"
        return f"<Plan {self.name}: {self.pair}, {method}, {where}, {cost}>"

    @property
    def request_size(self) -> Workload | None:
        """The size of requests; ``None`` where the plan has none."""
        if not self.prompt_tokens or not self.output_tokens:
            return None
        cached, shared = self.cached_prompt_tokens, self.shared_prompt_tokens
        return Workload(self.prompt_tokens, self.output_tokens, cached, shared)

    @property
    def engines(self) -> int:
        """How many engines share the load."""
        return self.instance_count * (self.copies.per_instance if self.copies else 1)


def plan_of(fields: dict[str, Any]) -> Plan:
    """The plan with these fields, as JSON has them. Raises pydantic's ValidationError."""
    return Plan.model_validate_json(json.dumps(fields))


@dataclass(frozen=True)
class Decision(Generic[T]):
    """The result of a planning step. ``reasons`` is empty if the user set the value."""

    value: T
    reasons: tuple[Reason, ...] = ()
    findings: tuple[Finding, ...] = ()


def decide(value: T, what: str, because: str, shown: str | None = None) -> Decision[T]:
    """A value set by planning; ``shown`` is its text in the reason."""
    text = str(value) if shown is None else shown
    return Decision(value, reasons=(Reason(what=what, value=text, because=because),))


class Decisions:
    """Collects reasons and findings in the order of the decisions."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []
        self._findings: list[Finding] = []

    def record(self, choice: Decision[T]) -> T:
        self.reasons += choice.reasons
        self.report(choice.findings)
        return choice.value

    def report(self, findings: Iterable[Finding]) -> None:
        self._findings += findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors first, otherwise in order, without duplicates."""
        unique = dict.fromkeys(self._findings)
        return tuple(sorted(unique, key=severity))


def price_origin(plan: Plan) -> str:
    """The origin and date of the price: ``list price of 2026-01-31``."""
    not_aws = any(finding.code == "price-not-from-aws" for finding in plan.findings)
    source = "not AWS's price, queried on" if not_aws else "list price of"
    elsewhere = any(finding.code == PRICE_ELSEWHERE for finding in plan.findings)
    return f"{source} {plan.price_date}{', of another region' if elsewhere else ''}"


PRICE_ELSEWHERE = "price-of-another-region"
"""Code of the finding that the catalogue has no price for the region of the plan."""
