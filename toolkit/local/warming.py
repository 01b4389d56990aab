"""A warm start from this machine: run a plan once, and keep what its engine compiled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from toolkit import warm
from toolkit.errors import PeagleError
from toolkit.local import client, records
from toolkit.local.artefacts import collected_by
from toolkit.local.hosts import Host
from toolkit.local.process import stop_engine
from toolkit.local.running import STOP_SECONDS, alone, down, up
from toolkit.planning.models import Plan
from toolkit.warm import Artefact

NAME_ENDS_WITH = "-warm"
"""So ends the name of the engine that collects; one of the plan's own name may run beside it."""

Progress = Callable[[str, str], object]
"""Called with what is going on, and a detail."""


def collect(plan: Plan, host: Host, folder: Path, progress: Progress) -> Artefact:
    """Start ``plan`` on ``host``, which must collect; keep its artefact in ``folder``; end it.

    Nothing runs afterwards, however this ends. Of a failure the log is kept. Raises what ``up``
    and ``toolkit.warm.fetch`` raise.
    """
    own = plan.model_copy(update={"name": f"{plan.name}{NAME_ENDS_WITH}"})
    with alone(own.name, "warm --local"):
        try:
            return _collect(own, host, folder, progress)
        finally:
            shutil.rmtree(collected_by(own.name), ignore_errors=True)


def _collect(own: Plan, host: Host, folder: Path, progress: Progress) -> Artefact:
    def tell(done: int, size: int) -> None:
        progress("fetching", f"{done / 1e6:.1f} of {size / 1e6:.1f} MB")

    engine = up(own, progress=progress, host=host)
    try:
        progress("packing", "what the engine compiled")
        artefact = warm.fetch(client.asking_warm(engine.process.port), folder, tell)
        down(own.name, now=True)
    except BaseException as error:
        stop_engine(engine.process, STOP_SECONDS)
        records.forget(own.name)
        if isinstance(error, PeagleError):
            error.fix = error.fix.replace("see its log", f"see {engine.process.log}")
        raise
    return artefact
