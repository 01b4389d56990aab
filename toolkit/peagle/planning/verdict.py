"""The question of a verdict, and its answer: which drafter and K on these GPUs, by load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from peagle.catalog.find import find_instance, find_pair
from peagle.catalog.schema import Catalog, Target
from peagle.catalog.tables import Instance, Price
from peagle.errors import Fix, NotFound, Refused, UserError, nearest
from peagle.fit.advice import divisions
from peagle.fit.estimate import fit_of
from peagle.planning.candidates import PairLoad, fit_on_instance, planned_fit, price_of
from peagle.planning.compared import ComparedSettings
from peagle.planning.plan import Options
from peagle.planning.runtime import choose_region, choose_runtime
from peagle.planning.verdict_changes import changes_of
from peagle.speed.deciding import Question, decide_workload
from peagle.speed.models import Workload
from peagle.speed.verdict import Verdict

WORKLOADS: Mapping[str, Workload] = {
    "short prompt": Workload(128, 400),
    "long prompt": Workload(2048, 256),
    "long answer": Workload(128, 1024),
}
"""The requests of a verdict without others."""

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Concurrent requests of a verdict without others."""


@dataclass(frozen=True)
class VerdictRequest:
    """What to compare. ``pair`` with a drafter compares that one alone, else all public ones.

    ``gpu`` is a name of the table of instances: its smallest and cheapest type is used, unless
    ``instance_type`` names one. Without ``tensor_parallel_size``, the fewest GPUs that fit.
    """

    pair: str
    gpu: str | None = None
    instance_type: str | None = None
    tensor_parallel_size: int | None = None
    workloads: Mapping[str, Workload] | None = None
    loads: Sequence[int] = LOADS
    vllm: str | None = None
    region: str | None = None


def make_verdict(request: VerdictRequest, catalog: Catalog) -> Verdict:
    """The verdict: the same request and catalogue give the same one.

    Raises NotFound for unknown names, UserError for impossible requests, and Refused if not even
    the target alone fits.
    """
    pair = find_pair(catalog, request.pair)
    options = Options(pair=request.pair, vllm=request.vllm, region=request.region)
    region = choose_region(options, catalog.runtimes).value
    runtime = choose_runtime(options, catalog, pair.target, None).value
    instance, price = _instance(request, catalog, region)
    sizes = request.workloads or WORKLOADS
    work = _load_of(pair.target, request, catalog, runtime.vllm, sizes.values())
    gpus = _tensor_parallel(request, work, instance)
    compared = ComparedSettings(work, instance, gpus)
    named = [pair.drafter] if "+" in request.pair and pair.drafter else None
    settings = compared.settings(named or [d for d in pair.target.drafters if d.public])
    question = Question(
        settings,
        tuple(sorted(set(request.loads))),
        price.usd_per_hour if price else None,
        pair.target.default_drafter,
    )
    decided = tuple(
        decide_workload(question, name, size, compared.performance, compared.assumed)
        for name, size in sizes.items()
    )
    return Verdict(
        target=pair.target.id,
        gpu=instance.gpu,
        tensor_parallel_size=gpus,
        vllm=runtime.vllm,
        instance_type=instance.type,
        gpu_count=instance.gpu_count,
        region=price.region if price else region,
        usd_per_hour=price.usd_per_hour if price else None,
        price_date=price.date.isoformat() if price else None,
        workloads=decided,
        changes=tuple(changes_of(compared, question, decided)),
    )


def _instance(
    request: VerdictRequest, catalog: Catalog, region: str
) -> tuple[Instance, Price | None]:
    """The type, and its price in this region or in another one."""
    if request.instance_type is not None:
        instance = find_instance(catalog.instances, request.instance_type)
        if request.gpu is not None and request.gpu.lower() != instance.gpu.lower():
            message = f"{instance.type} has {instance.gpu} GPUs, not {request.gpu}"
            raise UserError(message, "leave out --gpu or --instance-type")
        return instance, price_of(instance, region).value
    types = catalog.instances.instances
    wanted = (request.gpu or "").lower()
    having = [one for one in types if one.gpu.lower() == wanted]
    if not having:
        known = list(dict.fromkeys(one.gpu for one in types))
        hint = nearest(request.gpu or "", known) or f"one of {', '.join(known)}"
        raise NotFound(f"the catalogue has no instance type with the GPU {request.gpu!r}", hint)
    size = request.tensor_parallel_size or 1
    enough = [one for one in having if one.gpu_count >= size] or having

    def cost(one: Instance) -> tuple[int, bool, float, str]:
        price = price_of(one, region).value
        return one.gpu_count, price is None, price.usd_per_hour if price else 0.0, one.type

    chosen = min(enough, key=cost)
    return chosen, price_of(chosen, region).value


def _load_of(
    target: Target,
    request: VerdictRequest,
    catalog: Catalog,
    vllm: str,
    sizes: Iterable[Workload],
) -> PairLoad:
    """The target alone with a context for the largest requests, as many as the largest load."""
    longest = max(size.prompt_tokens + size.output_tokens for size in sizes)
    most = target.architecture.max_positions
    if longest > most:
        message = f"requests of {longest:,} tokens are longer than {target.id} supports"
        raise UserError(message, f"use at most {most:,} tokens of prompt and answer together")
    length = min(max(longest, target.default_max_model_len), most)
    return PairLoad(target, None, 0, vllm, length, max(request.loads), catalog)


def _tensor_parallel(request: VerdictRequest, work: PairLoad, instance: Instance) -> int:
    """The user's number of GPUs, or the fewest that fit. Raises UserError and Refused."""
    possible = list(divisions(work.target.architecture, instance.gpu_count))
    size = request.tensor_parallel_size
    if size is not None and size not in possible:
        sizes = ", ".join(map(str, possible))
        message = f"{work.target.id} cannot run on {size} of the GPUs of {instance.type}"
        raise UserError(message, f"use --tensor-parallel-size {sizes}")
    if size is None:
        size = fit_on_instance(work, instance, 0).fit.tensor_parallel_size
    fit = fit_of(planned_fit(work, instance, size))
    if not fit.fits:
        raise Refused(
            f"{work.target.id} does not fit on {size} x {instance.gpu} ({instance.type})",
            Fix("find types that fit", ("peagle", "plan", work.target.short_name)),
            code="does-not-fit",
        )
    return size
