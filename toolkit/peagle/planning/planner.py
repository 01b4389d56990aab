"""From what the user asked for to the whole answer.

Every step is a function that returns its Choice: a value, why it was chosen, and what is to be
said of it. No step asks the network, the clock or the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Runtime
from peagle.findings import Finding
from peagle.planning.candidates import Market, Place
from peagle.planning.decision import Choice
from peagle.planning.drafter import Chosen, choose_drafter
from peagle.planning.engine_settings import engine_arguments, engine_environment
from peagle.planning.limits import (
    choose_concurrency,
    choose_download_timeout,
    choose_length,
    choose_startup_timeout,
)
from peagle.planning.memory import Workload, drafter_bytes
from peagle.planning.plan import (
    Alternative,
    DrafterChoice,
    Options,
    Plan,
    ProofPlan,
    Reason,
    RuntimeChoice,
    SpeedEstimate,
    TargetChoice,
)
from peagle.planning.price import price_of
from peagle.planning.ranking import Ranked, alternative, choose_count, choose_place
from peagle.planning.rules import check_plan
from peagle.planning.runtime import (
    choose_ami,
    choose_image,
    choose_name,
    choose_region,
    choose_runtime,
)
from peagle.planning.speculation import (
    Verdict,
    asked_for,
    check_k,
    choose_k,
    speculation_findings,
    speculation_of,
    without_speculation,
)
from peagle.planning.weights import Placed, Streaming, place_weights, stream
from peagle.vllm.environment import check_environment, to_environment
from peagle.warm.transfer import DIGEST_VARIABLE, digest_in

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
        """Errors first; otherwise as they were made, and each only once."""
        found = dict.fromkeys(self._findings)
        return tuple(sorted(found, key=lambda finding: _SEVERITY[finding.level]))


@dataclass(frozen=True)
class _Decided:
    """What was chosen, before it is written in the words of vLLM and SageMaker."""

    options: Options
    catalog: Catalog
    pair: Chosen
    name: str
    region: str
    runtime: Runtime
    image: str
    work: Workload
    place: Place
    alternatives: tuple[Alternative, ...]
    ami: str | None
    count: int
    placed: Placed


def _decide(options: Options, catalog: Catalog, steps: _Steps) -> _Decided:
    check_k(options)
    asked = choose_drafter(options, catalog)
    ranked = _ranked(options, catalog, asked.value)
    place = ranked.value.place
    pair = _settle(options, asked, place.verdict, steps)
    target, drafter = pair.target, pair.drafter
    name = steps.take(choose_name(options, pair))
    region = steps.take(choose_region(options, catalog.runtimes))
    runtime = steps.take(choose_runtime(options, catalog.runtimes, target, drafter))
    image = steps.take(choose_image(options, catalog.runtimes, runtime, region, pair))
    length = steps.take(choose_length(options, target, drafter))
    concurrency = steps.take(choose_concurrency(options, drafter))
    work = Workload(target, drafter, place.verdict.k, runtime.vllm, length, concurrency)
    best = tuple(alternative(options, other) for other in steps.take(ranked).best)
    ami = steps.take(choose_ami(catalog.runtimes, runtime, place.instance.type))
    count = steps.take(choose_count(options, place))
    placed = steps.take(place_weights(options, catalog, pair, name))
    return _Decided(
        options, catalog, pair, name, region, runtime, image, work, place, best, ami, count, placed
    )


def _ranked(options: Options, catalog: Catalog, pair: Chosen) -> Choice[Ranked]:
    """Where it would run best. What the other steps have to say of this pair comes later, when it
    is known whether its drafter stays."""
    target, drafter = pair.target, pair.drafter
    asked = asked_for(options, pair)
    region = choose_region(options, catalog.runtimes).value
    vllm = choose_runtime(options, catalog.runtimes, target, drafter).value.vllm
    length = choose_length(options, target, drafter).value
    concurrency = choose_concurrency(options, drafter).value
    work = Workload(target, drafter, asked.usual_k, vllm, length, concurrency)
    runs = catalog.speeds.get(target.id, ())
    market = Market(options, catalog.instances, runs, asked, work, region)
    return choose_place(options, catalog.instances, market)


def _settle(options: Options, asked: Choice[Chosen], verdict: Verdict, steps: _Steps) -> Chosen:
    """The pair that is planned: the one that was asked for, unless evidence is against it."""
    if verdict.drafter is None and asked.value.drafter is not None:
        return steps.take(without_speculation(asked.value, verdict))
    pair = steps.take(asked)
    if pair.drafter is not None:
        steps.take(choose_k(options, pair.drafter, pair.own is not None, verdict))
        steps.take(Choice(None, findings=speculation_findings(pair, verdict)))
    return pair


def _engine(decided: _Decided, steps: _Steps) -> dict[str, Any]:
    """What the plan says of the models and of vLLM."""
    pair, work, placed, target = decided.pair, decided.work, decided.placed, decided.pair.target
    speculation = speculation_of(pair.drafter, work.k) if pair.drafter else None
    arguments = steps.take(
        engine_arguments(
            served_as=target.id,
            placed=placed,
            max_model_len=work.max_model_len,
            concurrency=work.concurrency,
            tensor_parallel_size=decided.place.hosting.fit.tensor_parallel_size,
            settings=decided.place.hosting.settings,
            speculation=speculation,
        )
    )
    architecture = decided.place.hosting.instance.gpu_architecture
    extra = steps.take(engine_environment(target, architecture, decided.runtime.vllm))
    streamed = steps.take(_streamed(decided))
    environment = to_environment(arguments) | extra | streamed | _image_digest(decided.image)
    check_environment(environment)
    rules = check_plan(
        decided.options,
        decided.catalog,
        pair=pair,
        work=work,
        hosting=decided.place.hosting,
        runtime=decided.runtime,
        region=decided.region,
        image=decided.image,
        ami=decided.ami,
        environment=environment,
    )
    steps.take(Choice(None, findings=rules))
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


def _streamed(decided: _Decided) -> Choice[dict[str, str]]:
    """What the engine needs to read the weights from S3 itself, if it is to."""
    hosting, placed = decided.place.hosting, decided.placed
    gpus, table = hosting.fit.tensor_parallel_size, decided.catalog.runtimes
    sizes = {placed.target: decided.pair.target.weight_bytes}
    if placed.drafter is not None:
        sizes[placed.drafter] = drafter_bytes(decided.work)
    where = Streaming(decided.runtime, table, hosting.instance, gpus, decided.region)
    return stream(sizes, where)


def _image_digest(image: str) -> dict[str, str]:
    """The image's digest, where it is named with it: a container cannot know its own, and what it
    compiled is of use to that very image only (``peagle.warm.transfer``)."""
    digest = digest_in(image)
    return {DIGEST_VARIABLE: digest} if digest else {}


def _server(decided: _Decided, steps: _Steps) -> dict[str, Any]:
    """What the plan says of SageMaker and of money."""
    runtime, instance, placed = decided.runtime, decided.place.hosting.instance, decided.placed
    place = decided.place
    sizes = (decided.pair.target.weight_bytes, drafter_bytes(decided.work))
    gpus = place.hosting.fit.tensor_parallel_size
    price = steps.take(price_of(instance, decided.region))
    return {
        "region": decided.region,
        "runtime": RuntimeChoice(
            vllm=runtime.vllm, image=decided.image, cuda=runtime.cuda, ami=decided.ami
        ),
        "instance_type": instance.type,
        "instance_count": decided.count,
        "download_timeout_seconds": steps.take(choose_download_timeout(placed, *sizes)),
        "startup_timeout_seconds": steps.take(choose_startup_timeout(placed, *sizes, gpus)),
        "fit": decided.place.hosting.fit,
        "price_per_hour_usd": place.usd_per_hour,
        "price_date": price.date.isoformat() if price else None,
        "speed": _speed(place),
        "alternatives": decided.alternatives,
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


def _speed(place: Place) -> SpeedEstimate | None:
    """What is known of the speed of the chosen place."""
    speed, source, compared = place.verdict.speed, place.source, place.verdict.compared
    if speed is None or source is None or place.tokens_per_second is None:
        return None
    alone = compared.alone if compared else None
    share = place.tokens_per_second / speed.tokens_per_second
    return SpeedEstimate(
        tokens_per_second=place.tokens_per_second,
        alone_tokens_per_second=round(alone.tokens_per_second * share, 1) if alone else None,
        usd_per_million_tokens=place.usd_per_million_tokens,
        acceptance_length=speed.acceptance_length,
        source=source,
        file=speed.run.file,
        vllm=speed.run.vllm,
        synthetic=speed.run.synthetic and speed.k > 0,
        interpolated=speed.between is not None,
    )
