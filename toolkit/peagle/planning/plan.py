"""Plan and its parts. No decisions."""

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field

from peagle.catalog.tables import HERE
from peagle.errors import Fix, Refused
from peagle.findings import Finding
from peagle.fit.estimate import Fit
from peagle.frozen import Frozen
from peagle.options import Options, Overrides, RolloutKind
from peagle.planning.company import Company
from peagle.speed.acceptance import AcceptanceBasis, Basis
from peagle.text import bounds_text, format_duration, format_usd, k_text
from peagle.workload import Slo, Workload, WorkloadName

PLAN_FORMAT = 1
"""Incremented when plan files of earlier versions can no longer be read."""

EXECUTION_ROLE = "${ExecutionRoleArn}"
"""Placeholder for the role, which is known only when the plan is applied."""

MODEL_BUCKET = "${ModelBucket}"
"""Placeholder for the bucket to which local weights are uploaded."""

PROVISIONING_SECONDS = 30 * 60
"""Time for finding and starting instances, besides a plan's own two timeouts."""

ABOUT_AWS = frozenset(
    {"ami-unverified", "image-by-tag", "image-not-in-ecr", "image-not-in-region",
     "instance-region-unknown", "price-unknown", "limit-before-start"}
)  # fmt: skip
"""Codes of findings that do not concern a plan for this machine."""

PRICE_ELSEWHERE = "price-of-another-region"
"""Code of the finding that the catalogue has no price for the region of the plan."""

AlarmKind = Literal["ttft", "errors", "acceptance", "load"]
"""What an alarm watches: the time to the first token, answers with a 5xx status, the acceptance
length, or requests that wait for a place in the engine."""

FloorSource = Literal["catalogue", "break-even", "option"]
"""Where the least acceptance length of a proof comes from. ``break-even``: from the performance
model; with less, the target alone is faster at the planned load."""


Detail = str | int | float | bool | dict[str, float]


class Reason(Frozen):
    """A decision of planning: ``what`` has ``value``. ``code`` names the cause, and ``values`` has
    its numbers and names; ``cli/view/reasons.py`` has the sentence of each code."""

    what: str
    value: str
    code: str
    values: dict[str, Detail] = {}


def reason(what: str, value: object, code: str, /, **values: Detail | None) -> Reason:
    """The reason with those values that are known, in five decimal places."""
    details = {
        name: round(detail, 5) if isinstance(detail, float) else detail
        for name, detail in values.items()
        if detail is not None
    }
    return Reason(what=what, value=str(value), code=code, values=details)


class Pins(Frozen):
    """What the container accepts from the mounted folder, as SHA-256s in hex: ``weights`` is the
    manifest of ``peagle weights sync``, ``warm`` are the archives of compiled code that may be
    restored; with ``any_warm`` each of them may be."""

    weights: str | None = None
    warm: tuple[str, ...] = ()
    any_warm: bool = False


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


class Speculation(Frozen):
    """``method`` and the rest as in vLLM's ``--speculative-config``; ``k`` is
    ``num_speculative_tokens``. P-EAGLE is ``eagle3`` with ``parallel_drafting``.
    ``acceptance_floor`` is the mean acceptance length below which a deployment is not proved.
    """

    method: str
    parallel_drafting: bool
    k: int
    settings: dict[str, Any] = {}
    acceptance_floor: float | None = None
    acceptance_floor_source: FloorSource | None = None


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
    is known, and speed and price meet what the options require. ``speed_source`` is ``source``
    where the speed is known. ``batch`` is what a batch takes and costs on them.
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


class Copies(Frozen):
    """The copies of the engine on each instance, and what each of them reserves: GPUs, CPU cores,
    and MiB of host memory."""

    per_instance: int = Field(ge=1)
    gpus: int = Field(ge=1)
    cpu_cores: int = Field(ge=1)
    memory_mib: int = Field(ge=128)


class Scaling(Frozen):
    """SageMaker keeps ``min_instances`` to ``max_instances``, so that each has about
    ``target_concurrency`` requests at a time (waiting ones included).

    After it ended an instance it ends no other for ``scale_in_cooldown_seconds``; after it started
    some, it starts no more for ``scale_out_cooldown_seconds``.

    With an inference component, ``min_copies`` to ``max_copies`` of the engine are kept instead,
    each with that many requests, and the instances follow them. No copies, and no instances, run
    while there are no requests where ``min_copies`` is 0; the first request then waits about
    ``wake_up_seconds``.
    """

    min_instances: int = Field(ge=0)
    max_instances: int = Field(ge=1)
    target_concurrency: float = Field(gt=0)
    scale_in_cooldown_seconds: int = Field(ge=0)
    scale_out_cooldown_seconds: int = Field(ge=0)
    min_copies: int | None = Field(default=None, ge=0)
    max_copies: int | None = Field(default=None, ge=1)
    wake_up_seconds: int | None = Field(default=None, ge=0)

    @property
    def scales_copies(self) -> bool:
        """Whether it scales the copies of the engine, and not the instances."""
        return self.max_copies is not None

    @property
    def scales_to_zero(self) -> bool:
        """Whether nothing runs while there are no requests."""
        return self.min_copies == 0

    @property
    def minimum(self) -> int:
        """The fewest copies, or instances without an inference component."""
        return self.min_instances if self.min_copies is None else self.min_copies

    @property
    def maximum(self) -> int:
        """The most copies, or instances without an inference component."""
        return self.max_instances if self.max_copies is None else self.max_copies

    @property
    def text(self) -> str:
        """``1 to 4 instances, target 8 requests at a time each``."""
        return bounds_text(self.minimum, self.maximum, self.target_concurrency, self.scales_copies)

    def prices(self, usd_per_hour: float | None, instance_count: int) -> tuple[float, float] | None:
        """USD per hour at the minimum and at the maximum, from the price of ``instance_count``
        instances; ``None`` if that is unknown."""
        if usd_per_hour is None:
            return None
        price = usd_per_hour / instance_count
        return round(price * self.min_instances, 4), round(price * self.max_instances, 4)


StepUnit = Literal["instances", "copies"]


class Step(Frozen):
    """The size of one step: a number of instances, or of copies."""

    value: int
    unit: StepUnit

    @property
    def text(self) -> str:
        """``1 instance``, ``4 copies``."""
        noun = {"instances": "instance", "copies": "copy"}[self.unit]
        return f"{self.value} {self.unit if self.value > 1 else noun}"

    def instances(self, count: int) -> int:
        """The step of ``count`` instances, or copies."""
        return min(self.value, count)

    def percent(self, count: int) -> float:
        """The step as a share of ``count`` instances, or copies, in percent."""
        return 100 * self.value / count


class Rollout(Frozen):
    """How an update replaces the instances, or the copies on them, and what undoes it.

    ``step`` is a batch of ``rolling``, the first step of ``canary``, each step of ``linear``, and
    ``None`` for ``all-at-once``. After every step, and before the earlier instances end, the update
    waits for ``baking_seconds``. ``extra_instances`` run besides during an update, at
    ``extra_usd_per_hour``.
    """

    kind: RolloutKind
    step: Step | None
    baking_seconds: int
    extra_instances: int
    extra_usd_per_hour: float | None
    alarms: tuple[AlarmKind, ...]

    @property
    def text(self) -> str:
        """``rolling, 1 instance per step, baking 10 min``."""
        steps = {"rolling": " per step", "linear": " per step", "canary": " first"}
        size = f", {self.step.text}{steps[self.kind]}" if self.step else ""
        return f"{self.kind}{size}, baking {format_duration(self.baking_seconds)}"

    def at_price(self, usd_per_hour: float) -> Self:
        """The rollout where one instance costs so much."""
        total = round(usd_per_hour * self.extra_instances, 4)
        return self.model_copy(update={"extra_usd_per_hour": total})

    def steps(self, instance_count: int) -> int:
        """How many steps an update of so many instances, or copies, takes."""
        if self.step is None:
            return 1
        if self.kind == "canary":
            return 2
        return math.ceil(instance_count / self.step.instances(instance_count))


class Limit(Frozen):
    """The end of a deployment: ``ttl_seconds`` after the deploy that sets it, or when the endpoint
    has cost ``budget_usd`` since it was requested, whichever is earlier. With neither, an earlier
    end time is removed."""

    ttl_seconds: int | None = None
    budget_usd: float | None = None

    @property
    def removes(self) -> bool:
        """Whether the deployment has no end time from then on."""
        return self.ttl_seconds is None and self.budget_usd is None


class Capture(Frozen):
    """Requests and answers that SageMaker copies to ``s3_uri``: ``percent`` of them, encrypted with
    ``kms_key``, or with S3's own key. S3 deletes them after ``retention_days``; ``None``: a rule of
    the bucket may."""

    s3_uri: str
    percent: int = Field(ge=1, le=100)
    kms_key: str | None = None
    retention_days: int | None = Field(default=None, ge=1)


class Observe(Frozen):
    """``dashboard``: CloudWatch gets one, and ``alarms``. ``log_retention_days``: how long the
    endpoint's log is kept, ``None`` for as long as it was. ``alarm_topic`` is the topic of SNS that
    all alarms notify, also those of a rollout."""

    dashboard: bool
    log_retention_days: int | None = None
    capture: Capture | None = None
    alarms: tuple[AlarmKind, ...] = ()
    alarm_topic: str | None = None


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

    __str__ = __repr__

    @property
    def is_here(self) -> bool:
        """Whether it is for the GPUs of the machine that made it, not for SageMaker."""
        return self.instance_type == HERE

    @property
    def weights(self) -> dict[str, Weights]:
        """The weights of ``target`` and ``drafter``, as far as they have any."""
        parts = {"target": self.target.weights, "drafter": self.drafter and self.drafter.weights}
        return {part: weights for part, weights in parts.items() if weights}

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


def parse_plan(fields: dict[str, Any]) -> Plan:
    """The plan with these fields, as JSON has them. Raises pydantic's ValidationError."""
    return Plan.model_validate_json(json.dumps(fields))


@dataclass
class Decisions:
    """Reasons and findings, in the order of the decisions. What the user sets has no reason."""

    reasons: list[Reason] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def explain(self, what: str, value: object, code: str, /, **values: Detail | None) -> None:
        """Add the reason of a decision."""
        self.reasons.append(reason(what, value, code, **values))


def price_origin(plan: Plan) -> str:
    """The origin and date of the price: ``list price of 2026-01-31``."""
    codes = {finding.code for finding in plan.findings}
    source = "not AWS's price, queried on" if "price-not-from-aws" in codes else "list price of"
    return f"{source} {plan.price_date}{', of another region' if PRICE_ELSEWHERE in codes else ''}"


def refuse_here(plan: Plan) -> None:
    """Raise Refused for a plan that is for a machine of the user's own."""
    if plan.is_here:
        fix = Fix("run it on that machine", ("peagle", "local", "up", plan.pair))
        message = f"{plan.name} is planned for a machine of your own, not for SageMaker"
        raise Refused(message, fix, code="planned-for-here")
