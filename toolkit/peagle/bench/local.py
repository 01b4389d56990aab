"""The engines on this machine that a bench starts: one for each setting, and the target alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from peagle.bench.measure import BenchTarget, measure_of
from peagle.bench.models import BenchedServer, BenchSetting
from peagle.bench.sender import LoadSender
from peagle.bench.sweep import Measure
from peagle.bench.targets import target_of_engine
from peagle.catalog.schema import Catalog
from peagle.engine import state as records
from peagle.engine.local import StepProgress, end_engine, exclusive, start_local, stop_local
from peagle.engine.runner import LocalOptions
from peagle.engine.state import LocalEngine, local_engine_names, read_local_engine
from peagle.errors import EngineError, Fix, UserError
from peagle.planning import Options, make_plan
from peagle.planning.plan import Plan
from peagle.planning.speculation import without_floor
from peagle_serve.contract import SPECULATION
from peagle_serve.warm.cache_key import UnknownDevice, gpu_device

BENCH_SUFFIX = "-bench"
"""Ends the names of a bench's engines, so that no engine of ``peagle local up`` is replaced."""

ALONE_SUFFIX = "-alone"
"""Ends the name of the engine that serves the target of another one alone."""

_WORD = re.compile(r"[A-Z0-9]+")


@dataclass(frozen=True)
class LocalEngines:
    """Starts the plan of a setting on this machine.

    ``plan_of`` makes the plan; ``options`` choose process or container; ``say`` shows the step of
    a start and the last line of the log. ``usd_per_hour`` is of this machine. ``started`` is called
    with each engine before it is measured.
    """

    plan_of: Callable[[BenchSetting], Plan]
    options: LocalOptions
    sender: LoadSender
    say: Callable[[str, str], object] = lambda step, line: None
    usd_per_hour: float | None = None
    started: Callable[[BenchSetting, BenchTarget], object] = lambda setting, target: None

    @contextmanager
    def opened(self, setting: BenchSetting) -> Iterator[Measure]:
        """The engine of this setting, until the block ends. A failed engine leaves its log.

        Raises what ``start_local`` and ``probe`` raise.
        """
        plan = bench_plan(self.plan_of(setting))
        with exclusive(plan.name, "bench"):
            if plan.name in records.local_engine_names():
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


def bench_plan(plan: Plan) -> Plan:
    """The plan under a name of its own and without a floor: a low acceptance is a result."""
    return without_floor(plan).model_copy(update={"name": f"{plan.name}{BENCH_SUFFIX}"})


def local_server(plan: Plan, gpus: Iterable[str], uses_gpus: bool) -> BenchedServer:
    """What is measured on this machine; ``gpus`` are the names of the catalogue."""
    found = gpus_here(gpus) if uses_gpus else None
    return BenchedServer(
        name=plan.name,
        where="local",
        base_url="",
        model=plan.target.id,
        pair=plan.pair,
        vllm=plan.runtime.vllm,
        gpu=found[0] if found else None,
        gpu_count=found[1] if found else None,
        tensor_parallel_size=plan.fit.tensor_parallel_size if uses_gpus else 1,
    )


def gpus_here(known: Iterable[str]) -> tuple[str, int] | None:
    """The GPU of this machine by its name in the catalogue, else by its own, and their number;
    ``None`` without a GPU."""
    try:
        names = [name.rpartition(" (")[0] for name in gpu_device()["gpus"]]
    except UnknownDevice:
        return None
    return catalog_name(names[0], known), len(names)


def catalog_name(gpu: str, known: Iterable[str]) -> str:
    """``H100`` for ``NVIDIA H100 80GB HBM3``: the longest name of the catalogue whose words occur
    in it, in order; else ``gpu`` itself."""
    words = _WORD.findall(gpu.upper())
    fitting = [name for name in known if _is_within(_WORD.findall(name.upper()), words)]
    return max(fitting, key=len, default=gpu)


def _is_within(name: list[str], words: list[str]) -> bool:
    """Whether the words of the name are in ``words``, in their order; ``SE`` is Server Edition."""
    rest = iter(words)
    return all(word in rest for word in name if word != "SE")


def plan_alone(engine: LocalEngine, catalog: Catalog) -> Plan:
    """The plan of the engine's target with the engine's own settings, and without speculation.

    Raises UserError for an engine in a container, whose image is not known here, and NotFound for a
    target that the catalogue does not have.
    """
    if engine.image is not None:
        raise UserError(
            f"{engine.name} runs in a container",
            Fix(
                "start its target alone, and pass its address with --against",
                ("peagle", "local", "up", engine.served_as, "--no-speculation",
                 "--engine", "docker", "--name", f"{engine.name}{ALONE_SUFFIX}"),
            ),
            "in-a-container",
        )  # fmt: skip
    options = Options(
        pair=engine.served_as,
        name=f"{engine.name}{ALONE_SUFFIX}",
        vllm=engine.vllm,
        speculation=False,
    )
    environment = {k: v for k, v in engine.environment.items() if k != SPECULATION}
    return make_plan(options, catalog).model_copy(update={"environment": environment})


def target_alone(
    engine: LocalEngine, catalog: Catalog, progress: StepProgress = lambda step, line: None
) -> AbstractContextManager[LocalEngine]:
    """The target of ``engine`` alone, which runs while the block does; one that ran before is left
    running. Raises what ``plan_alone`` raises at once, and ``start_local`` in the block."""
    return _running(plan_alone(engine, catalog), progress)


@contextmanager
def _running(plan: Plan, progress: StepProgress) -> Iterator[LocalEngine]:
    ran = plan.name in local_engine_names() and read_local_engine(plan.name) is not None
    started = start_local(plan, progress=progress)
    try:
        yield started
    finally:
        if not ran:
            stop_local(plan.name, now=True)
