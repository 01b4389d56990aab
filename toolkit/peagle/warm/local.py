"""``peagle warm --local``: run a plan on this machine once and keep what its engine compiled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from peagle.engine import state as records
from peagle.engine.client import exchange
from peagle.engine.local import STOP_SECONDS, Progress, exclusive, start_local, stop_local
from peagle.engine.process import stop_engine
from peagle.engine.runner import Runner
from peagle.engine.state import collected_folder
from peagle.errors import EngineError
from peagle.planning.plan import Plan
from peagle.warm.transfer import IncompleteResponse, WarmArtifact, WarmReply, fetch
from peagle_serve.contract import ATTRIBUTES_HEADER, WARM_ATTRIBUTE

COLLECTING_SUFFIX = "-warm"
"""Ends the name of the engine that collects, so that one with the plan's own name may run too."""


def collect_locally(plan: Plan, runner: Runner, folder: Path, progress: Progress) -> WarmArtifact:
    """Start ``plan`` on ``runner``, which must collect; keep its artifact in ``folder``; stop it.

    Nothing runs afterwards, however this ends; the log of a failure is kept. Raises what ``up``
    and ``peagle.warm.transfer.fetch`` raise.
    """
    own = plan.model_copy(update={"name": f"{plan.name}{COLLECTING_SUFFIX}"})
    with exclusive(own.name, "warm --local"):
        try:
            return _collect(own, runner, folder, progress)
        finally:
            shutil.rmtree(collected_folder(own.name), ignore_errors=True)


def _collect(own: Plan, runner: Runner, folder: Path, progress: Progress) -> WarmArtifact:
    engine = start_local(own, progress=progress, runner=runner)

    def send(body: dict[str, Any]) -> WarmReply:
        headers = {"Content-Type": "application/json", ATTRIBUTES_HEADER: WARM_ATTRIBUTE}
        try:
            content = json.dumps(body).encode()
            return WarmReply(*exchange(engine.process.port, content, headers))
        except EngineError as error:
            raise IncompleteResponse(error) from error

    def show_bytes(done: int, size: int) -> None:
        progress("fetching", f"{done / 1e6:.1f} of {size / 1e6:.1f} MB")

    try:
        progress("packing", "compile caches")
        artifact = fetch(send, folder, show_bytes, log=engine.process.log)
        stop_local(own.name, now=True)
    except BaseException:
        stop_engine(engine.process, STOP_SECONDS)
        records.forget(own.name)
        raise
    return artifact
