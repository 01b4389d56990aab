"""From what the user asked for to the whole answer.

Every step is a function that returns its Choice: a value, why it was chosen, and what is to be
said of it. No step asks the network, the clock or the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from toolkit.catalog.models import Catalog, Price, Runtime
from toolkit.findings import Finding
from toolkit.planning.arguments import engine_arguments
from toolkit.planning.choice import Choice
from toolkit.planning.drafters import Chosen, choose_drafter
from toolkit.planning.environment import check_environment, to_environment
from toolkit.planning.hosting import Hosting, choose_count, choose_hosting
from toolkit.planning.limits import choose_concurrency, choose_length
from toolkit.planning.memory import Workload, drafter_bytes
from toolkit.planning.models import (
    DrafterChoice,
    Options,
    Plan,
    ProofPlan,
    Reason,
    RuntimeChoice,
    TargetChoice,
)
from toolkit.planning.names import choose_name
from toolkit.planning.prices import price_of
from toolkit.planning.runtimes import choose_ami, choose_image, choose_region, choose_runtime
from toolkit.planning.settings import engine_environment
from toolkit.planning.speculation import choose_k, speculation_of
from toolkit.planning.timeouts import choose_download_timeout, choose_startup_timeout
from toolkit.planning.weights import Placed, place_weights

T = TypeVar("T")

_SEVERITY = {"error": 0, "warning": 1, "note": 2}


def make_plan(options: Options, catalog: Catalog) -> Plan:
    """The plan for these options: the same options and catalogue give the same plan.

    What cannot be meant raises (UserError, NotFound); what should not be done is a finding, and
    an error among the findings keeps everybody from applying the plan.
    """
    steps = _Steps()
    decided = _decide(options, catalog, steps)
    engine = _engine(decided, steps)
    server = _server(decided, steps)
    return Plan(
        name=decided.name,
        pair=decided.pair.name,
        **engine,
        **server,
        findings=steps.findings,
        reasons=steps.reasons,
    )


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings because of which nothing may be created."""
    return [finding for finding in findings if finding.level == "error"]


class _Steps:
    """Collects what the steps have to say, in their order."""

    def __init__(self) -> None:
        self._reasons: list[Reason] = []
        self._findings: list[Finding] = []

    def take(self, choice: Choice[T]) -> T:
        self._reasons += choice.reasons
        self._findings += choice.findings
        return choice.value

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(self._reasons)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors first; otherwise as they were made."""
        return tuple(sorted(self._findings, key=lambda finding: _SEVERITY[finding.level]))


@dataclass(frozen=True)
class _Decided:
    """What was chosen, before it is written in the words of vLLM and SageMaker."""

    pair: Chosen
    name: str
    region: str
    runtime: Runtime
    image: str
    work: Workload
    hosting: Hosting
    ami: str | None
    count: int
    placed: Placed


def _decide(options: Options, catalog: Catalog, steps: _Steps) -> _Decided:
    pair = steps.take(choose_drafter(options, catalog))
    target, drafter = pair.target, pair.drafter
    k = steps.take(choose_k(options, drafter, pair.own is not None)) if drafter else 0
    name = steps.take(choose_name(options, pair))
    region = steps.take(choose_region(options, catalog.runtimes))
    runtime = steps.take(choose_runtime(options, catalog.runtimes, target, drafter))
    image = steps.take(choose_image(options, catalog.runtimes, runtime, region, pair))
    length = steps.take(choose_length(options, target, drafter))
    concurrency = steps.take(choose_concurrency(options, drafter))
    work = Workload(target, drafter, k, runtime.vllm, length, concurrency)
    hosting = steps.take(choose_hosting(options, catalog.instances, work, region))
    ami = steps.take(choose_ami(catalog.runtimes, runtime, hosting.instance.type))
    count = steps.take(choose_count(options))
    placed = steps.take(place_weights(options, catalog, pair, name))
    return _Decided(pair, name, region, runtime, image, work, hosting, ami, count, placed)


def _engine(decided: _Decided, steps: _Steps) -> dict[str, Any]:
    """What the plan says of the models and of vLLM."""
    pair, work, placed = decided.pair, decided.work, decided.placed
    target = pair.target
    speculation = speculation_of(pair.drafter, work.k) if pair.drafter else None
    arguments = steps.take(
        engine_arguments(
            served_as=target.id,
            placed=placed,
            max_model_len=work.max_model_len,
            concurrency=work.concurrency,
            tensor_parallel_size=decided.hosting.fit.tensor_parallel_size,
            settings=decided.hosting.settings,
            speculation=speculation,
        )
    )
    architecture = decided.hosting.instance.gpu_architecture
    extra = steps.take(engine_environment(target, architecture, decided.runtime.vllm))
    environment = to_environment(arguments) | extra
    check_environment(environment)
    return {
        "target": TargetChoice(
            id=target.id,
            licence=target.licence,
            weight_bytes=target.weight_bytes,
            weights=placed.target,
        ),
        "drafter": _drafter_choice(pair, placed),
        "speculation": speculation,
        "max_model_len": work.max_model_len,
        "concurrency": work.concurrency,
        "engine_arguments": arguments,
        "environment": dict(sorted(environment.items())),
        "mounts": placed.mounts,
        "proof": ProofPlan(**target.proof.model_dump()),
    }


def _server(decided: _Decided, steps: _Steps) -> dict[str, Any]:
    """What the plan says of SageMaker and of money."""
    runtime, instance, placed = decided.runtime, decided.hosting.instance, decided.placed
    sizes = (decided.pair.target.weight_bytes, drafter_bytes(decided.work))
    price = steps.take(price_of(instance, decided.region))
    return {
        "region": decided.region,
        "runtime": RuntimeChoice(
            vllm=runtime.vllm, image=decided.image, cuda=runtime.cuda, ami=decided.ami
        ),
        "instance_type": instance.type,
        "instance_count": decided.count,
        "download_timeout_seconds": steps.take(choose_download_timeout(placed, *sizes)),
        "startup_timeout_seconds": steps.take(choose_startup_timeout(placed, *sizes)),
        "fit": decided.hosting.fit,
        "price_per_hour_usd": _total(price, decided.count),
        "price_date": price.date.isoformat() if price else None,
    }


def _drafter_choice(pair: Chosen, placed: Placed) -> DrafterChoice | None:
    if pair.drafter is None:
        return None
    _, _, identity = pair.name.partition("+")
    return DrafterChoice(
        name=pair.drafter.name,
        id=identity,
        licence=pair.drafter.licence,
        weights=placed.drafter,
    )


def _total(price: Price | None, count: int) -> float | None:
    """USD per hour of all instances."""
    return None if price is None else round(price.usd_per_hour * count, 4)
