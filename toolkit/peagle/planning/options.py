"""What the user asks of a plan. No behavior."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from peagle.checkpoints import Checkpoint
from peagle.speed.models import WorkloadName
from peagle.speed.slo import Slo

RolloutKind = Literal["rolling", "canary", "linear", "all-at-once"]
"""How an update moves traffic to its new instances."""

AUTO: Final = "auto"
"""As many copies of the engine on an instance as its GPUs and the load allow."""


class Frozen(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Overrides(Frozen):
    """What the user sets in place of the plan: ``settings`` are vLLM's arguments without dashes,
    ``environment`` the container's variables (an empty value leaves one out), ``ami`` the host AMI
    (``default``: SageMaker's). Timeouts are seconds."""

    settings: dict[str, str] = {}
    environment: dict[str, str] = {}
    ami: str | None = None
    startup_timeout: int | None = None
    download_timeout: int | None = None


class Options(Frozen):
    """The options of ``peagle plan``. ``None`` means that planning decides, and gives a reason.

    ``drafter`` is a drafter's name in the catalogue, or the user's own head: ``s3://...``,
    a Hugging Face id (``org/name`` or ``org/name@revision``), or a folder. ``drafter_checkpoint``
    holds the files read from there, if any; ``target_checkpoint`` those of a target that is not in
    the catalogue. ``model_source`` is an ``s3://`` prefix that holds the target's weights.
    ``image`` replaces AWS's image; with ``baked_weights`` it has the weights of target and drafter
    in it. ``weights_by`` is how weights in S3 reach the engine: SageMaker
    mounts them, or the engine itself streams them. ``prompt_tokens`` and ``output_tokens`` are the
    size of a usual request, of whose prompt ``cached_prompt_tokens`` are in the prefix cache, of
    these ``shared_prompt_tokens`` for all conversations; by default those of ``workload``.
    ``requests`` is the size of a batch, to be done ``within`` seconds. ``min_tokens_per_second`` is
    the required output speed of the endpoint at that concurrency, ``slo`` the required times of a
    request, and ``max_price_per_hour`` the limit of the price of all its instances together, in
    USD. ``warm_sha256`` are the archives that may be restored, and with ``allow_unpinned_warm`` any
    may be. The five before these are as in
    Overrides. ``ttl`` (seconds), ``budget`` (USD) and ``no_limit`` make the plan's Limit.
    ``copies`` is the number of engines on each instance (1: without an inference component), by
    default ``auto``. ``chosen_by`` names what chose drafter and K, or no speculation, if not the
    user; ``fitting_length`` is the longest default context that fits. ``rollout`` is how updates
    replace the instances: in steps of ``rollout_step`` (``2`` instances, or ``25%`` of them), each
    followed by ``baking_time`` in seconds.
    With ``max_instances`` the endpoint scales automatically, from ``min_instances`` on (1), so that
    each has ``target_concurrency`` requests at a time. With ``scale_to_zero`` no instance runs
    while there are no requests, which needs an inference component, also for a single copy.
    Those from ``subnets`` on are as in ``peagle.planning.company.Company``.
    ``observe``, ``log_retention`` (days), ``alarm_topic`` and ``capture_...`` make the plan's
    Observe; a ``capture_retention`` of 0 days leaves captured data to the bucket's own rules.
    """

    pair: str
    name: str | None = None
    region: str | None = None
    instance_type: str | None = None
    instance_count: int | None = None
    copies: int | Literal["auto"] | None = None
    min_tokens_per_second: float | None = None
    max_price_per_hour: float | None = None
    k: int | None = None
    max_model_len: int | None = None
    concurrency: int | None = None
    workload: WorkloadName | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    shared_prompt_tokens: int | None = None
    output_tokens: int | None = None
    requests: int | None = None
    within: int | None = None
    slo: Slo | None = None
    speculation: bool = True
    drafter: str | None = None
    chosen_by: str | None = None
    fitting_length: int | None = None
    drafter_checkpoint: Checkpoint | None = None
    target_checkpoint: Checkpoint | None = None
    vllm: str | None = None
    image: str | None = None
    model_source: str | None = None
    baked_weights: bool = False
    weights_by: Literal["mount", "stream"] = "mount"
    settings: dict[str, str] = {}
    environment: dict[str, str] = {}
    ami: str | None = None
    startup_timeout: int | None = None
    download_timeout: int | None = None
    warm_sha256: tuple[str, ...] = ()
    allow_unpinned_warm: bool = False
    rollout: RolloutKind | None = None
    rollout_step: str | None = None
    baking_time: int | None = None
    min_instances: int | None = None
    max_instances: int | None = None
    target_concurrency: float | None = None
    scale_to_zero: bool = False
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    network_isolation: bool = False
    kms_key: str | None = None
    tags: dict[str, str] = {}
    name_prefix: str = ""
    permissions_boundary: str | None = None
    ttl: int | None = None
    budget: float | None = None
    no_limit: bool = False
    observe: bool = False
    log_retention: int | None = None
    alarm_topic: str | None = None
    capture_data: str | None = None
    capture_percent: int | None = None
    capture_kms_key: str | None = None
    capture_retention: int | None = None

    @property
    def overrides(self) -> Overrides:
        """What the user sets in place of the plan."""
        return Overrides(**{name: getattr(self, name) for name in Overrides.model_fields})
