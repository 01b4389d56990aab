"""Engines of this machine that a bench starts: one for each setting of a sweep, or the target of a
running engine alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from peagle.bench import aiperf
from peagle.bench.aiperf import Aiperf
from peagle.bench.lossless import SweepLossless
from peagle.bench.measure import BenchTarget, Measure, measure_of, new_result
from peagle.bench.result import BenchedServer, BenchResult, BenchSetting
from peagle.bench.sweep import PlanOf, ResultFile, SweepProgress, SweepRequest, make_sweep
from peagle.bench.targets import target_of_engine
from peagle.catalog.schema import Catalog
from peagle.engine.local import StepProgress, end_engine, exclusive, start_local, stop_local
from peagle.engine.runner import LocalOptions
from peagle.engine.state import LocalEngine, local_engine_names, read_local_engine
from peagle.errors import EngineError, Fix, UserError
from peagle.planning import Options, make_plan
from peagle.planning.plan import Plan
from peagle.planning.speculation import without_floor
from peagle_serve.contract import SPECULATION
from peagle_serve.warm import UnknownDevice, gpu_device

BENCH_SUFFIX = "-bench"
"""Ends the names of a bench's engines, so that no engine of ``peagle local up`` is replaced."""

ALONE_SUFFIX = "-alone"
"""Ends the name of the engine that serves the target of another one alone."""

_WORD = re.compile(r"[A-Z0-9]+")


def sweep_on_this_machine(
    request: SweepRequest,
    file: Path,
    plan_of: PlanOf,
    options: LocalOptions,
    catalog: Catalog,
    say: StepProgress,
    observe: Callable[[SweepProgress], object],
    lossless: SweepLossless | None = None,
) -> BenchResult:
    """Measure the settings with engines of this machine; every row is kept in ``file``.

    With ``lossless`` each engine's greedy answers are collected, too, and those of the target.

    Raises SenderMissing, UserError, and what starting and measuring an engine raises.
    """
    if not options.gpus:
        request.refuse_imposed()
    sender = aiperf.find_sender()
    sweep, plan_of = make_sweep(request, plan_of)
    largest = plan_of(max(sweep.settings, key=lambda setting: setting.k))
    gpus = {instance.gpu for instance in catalog.instances.instances}
    fresh = new_result(local_server(largest, gpus, options.gpus), sender, request.command)
    if request.usd_per_hour:
        fresh = replace(fresh, usd_per_hour=request.usd_per_hour, price_source="given")
    result = ResultFile.continued(file, fresh, request.again)
    engines = LocalEngines(plan_of, options, sender, say, request.usd_per_hour)
    if lossless is not None:
        engines = replace(engines, started=lossless.ask)
    measured = sweep.run(result, engines.opened, observe)
    if lossless is not None:
        lossless.complete(sweep.settings, engines.opened)
    return measured


@dataclass(frozen=True)
class LocalEngines:
    """Starts the plan of a setting on this machine, under a name of its own and without a floor: a
    low acceptance is a result.

    ``plan_of`` makes the plan; ``options`` choose process or container; ``say`` shows the step of
    a start and the last line of the log. ``usd_per_hour`` is of this machine. ``started`` is called
    with each engine before it is measured.
    """

    plan_of: PlanOf
    options: LocalOptions
    sender: Aiperf
    say: StepProgress = lambda step, line: None
    usd_per_hour: float | None = None
    started: Callable[[BenchSetting, BenchTarget], object] = lambda setting, target: None

    @contextmanager
    def opened(self, setting: BenchSetting) -> Iterator[Measure]:
        """The engine of this setting, until the block ends. A failed engine leaves its log.

        Raises what ``start_local`` and ``probe`` raise.
        """
        plan = without_floor(self.plan_of(setting))
        plan = plan.model_copy(update={"name": f"{plan.name}{BENCH_SUFFIX}"})
        with exclusive(plan.name, "bench"):
            if plan.name in local_engine_names():
                stop_local(plan.name, now=True)  # of a sweep that was killed
            engine = start_local(plan, progress=self.say, options=self.options)
            try:
                target = replace(
                    target_of_engine(engine), setting=setting, usd_per_hour=self.usd_per_hour
                )
                self.started(setting, target)
                yield measure_of(target, self.sender)
            except EngineError:
                end_engine(engine)
                raise
            except BaseException:
                stop_local(plan.name, now=True)
                raise
            stop_local(plan.name, now=True)


def local_server(plan: Plan, gpus: Iterable[str], uses_gpus: bool) -> BenchedServer:
    """What is measured on this machine; ``gpus`` are the names of the catalogue."""
    gpu, count = _gpus_here(gpus) if uses_gpus else (None, None)
    return BenchedServer(
        name=plan.name,
        where="local",
        base_url="",
        model=plan.target.id,
        pair=plan.pair,
        vllm=plan.runtime.vllm,
        gpu=gpu,
        gpu_count=count,
        tensor_parallel_size=plan.fit.tensor_parallel_size if uses_gpus else 1,
    )


def _gpus_here(catalog_names: Iterable[str]) -> tuple[str, int] | tuple[None, None]:
    """The GPU of this machine by its name in the catalogue, else by its own, and their number."""
    try:
        names = [name.rpartition(" (")[0] for name in gpu_device()["gpus"]]
    except UnknownDevice:
        return None, None
    return catalog_name(names[0], catalog_names), len(names)


def catalog_name(gpu: str, names: Iterable[str]) -> str:
    """``H100`` for ``NVIDIA H100 80GB HBM3``: the longest name of the catalogue whose words occur
    in it, in order (``SE`` is Server Edition); else ``gpu`` itself."""

    def is_within(name: str) -> bool:
        rest = iter(_WORD.findall(gpu.upper()))
        return all(word in rest for word in _WORD.findall(name.upper()) if word != "SE")

    return max(filter(is_within, names), key=len, default=gpu)


def target_alone(
    engine: LocalEngine, catalog: Catalog, progress: StepProgress = lambda step, line: None
) -> AbstractContextManager[BenchTarget]:
    """The target of ``engine`` alone, with the engine's own settings, which runs while the block
    does; one that ran before is left running.

    Raises UserError at once for an engine in a container, whose image is not known here, and
    NotFound for a target that the catalogue does not have; in the block what ``start_local``
    raises.
    """
    name = f"{engine.name}{ALONE_SUFFIX}"
    if engine.image is not None:
        raise UserError(
            f"{engine.name} runs in a container",
            Fix(
                "start its target alone, and pass its address with --against",
                ("peagle", "local", "up", engine.served_as, "--no-speculation",
                 "--engine", "docker", "--name", name),
            ),
            "in-a-container",
        )  # fmt: skip
    options = Options(pair=engine.served_as, name=name, vllm=engine.vllm, speculation=False)
    environment = {k: v for k, v in engine.environment.items() if k != SPECULATION}
    plan = make_plan(options, catalog).model_copy(update={"environment": environment})
    return _running(plan, progress)


@contextmanager
def _running(plan: Plan, progress: StepProgress) -> Iterator[BenchTarget]:
    ran = plan.name in local_engine_names() and read_local_engine(plan.name) is not None
    started = start_local(plan, progress=progress)
    try:
        yield target_of_engine(started)
    finally:
        if not ran:
            stop_local(plan.name, now=True)
