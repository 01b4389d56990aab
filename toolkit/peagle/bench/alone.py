"""Run the target of a local engine alone, without speculation, to compare its answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from peagle.catalog.schema import Catalog
from peagle.engine.local import StepProgress, start_local, stop_local
from peagle.engine.state import LocalEngine, local_engine_names, read_local_engine
from peagle.errors import Fix, UserError
from peagle.planning import Options, Plan, make_plan
from peagle_serve.contract import SPECULATION

SUFFIX = "-alone"


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
                 "--engine", "docker", "--name", f"{engine.name}{SUFFIX}"),
            ),
            "in-a-container",
        )  # fmt: skip
    options = Options(
        pair=engine.served_as,
        name=f"{engine.name}{SUFFIX}",
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
