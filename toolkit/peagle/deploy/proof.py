"""Proof through the endpoint itself: the plan's prompts, and the engine's counters around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peagle import proof
from peagle.aws import runtime
from peagle.aws.client import Aws
from peagle.aws.errors import EngineRefusal
from peagle.aws.sagemaker import describe
from peagle.deploy.state import Proved
from peagle.deploy.status import told_by_sandbox
from peagle.errors import NotProved
from peagle.planning.plan import Plan
from peagle.protocol import Counters, piece_of, request_body

OWN_IMAGE_FIX = (
    "use our image: `peagle image build PAIR --push` makes and pushes it, then deploy with "
    "--image URI"
)


def prove_endpoint(aws: Aws, plan: Plan, name: str) -> Proved:
    """Ask the plan's prompts and judge. Without speculation an answer is the proof.

    A stand-in's acceptance says nothing about the pair, so the pair's floor is not laid on it.
    Raises NotProved when the image cannot tell its counters, or refuses a prompt; EngineError
    when it does not answer.
    """
    if plan.speculation is None:
        return _answers(aws, plan, name)

    read = _one_engine if plan.instance_count == 1 else _many_engines(plan.instance_count)
    seen = proof.prove(
        lambda body: _ask(aws, name, body),
        lambda: read(aws, name),
        prompts=plan.proof.prompts,
        chat=plan.proof.chat,
        max_tokens=plan.proof.max_tokens,
        floor=None if _is_stand_in(aws, name) else plan.speculation.acceptance_floor,
    )
    return Proved(
        acceptance_length=seen.acceptance_length,
        drafts=seen.drafts,
        acceptance_per_position=seen.acceptance_per_position,
        floor=seen.floor,
        passed=seen.passed,
    )


def _ask(aws: Aws, name: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        return runtime.ask(aws, name, body)
    except EngineRefusal as error:
        raise NotProved(
            f"a prompt of the proof was not answered: {error.message}",
            "if the context is too short for it, deploy with a longer --max-model-len",
        ) from error


def _is_stand_in(aws: Aws, name: str) -> bool:
    return told_by_sandbox(aws, describe(aws, name)).stand_in is not None


ReadCounters = Callable[[Aws, str], Counters]


def _one_engine(aws: Aws, name: str) -> Counters:
    counted = runtime.counters(aws, name)
    if counted is None:
        raise NotProved(
            f"the image of {name} does not tell how many drafts it accepts", OWN_IMAGE_FIX
        )
    return counted


def _many_engines(count: int) -> ReadCounters:
    """Counters of an endpoint with several instances, whose answers come from any of them.

    Two readings cannot be subtracted, so the first one counts as nothing, and the last one is
    that of the engine which has drafted most since it started.
    """
    readings = 0

    def read(aws: Aws, name: str) -> Counters:
        nonlocal readings
        readings += 1
        asked = [_one_engine(aws, name) for _ in range(1 if readings == 1 else 4 * count)]
        best = max(asked, key=lambda counted: counted.drafts)
        return best.since(best) if readings == 1 else best

    return read


def require(proved: Proved) -> None:
    """Raise NotProved unless the proof was passed; without speculation nothing can be short."""
    if proved.passed or proved.floor is None:
        return
    proof.require(
        proof.Proof(
            proved.acceptance_length,
            proved.drafts,
            proved.acceptance_per_position,
            proved.floor,
            proved.passed,
        )
    )


def _answers(aws: Aws, plan: Plan, name: str) -> Proved:
    body = request_body(
        plan.proof.prompts[0], chat=plan.proof.chat, max_tokens=plan.proof.max_tokens
    )
    answer: dict[str, Any] = _ask(aws, name, body)
    if not piece_of(answer).text:
        raise NotProved(f"{name} answers a prompt with nothing", f"see `peagle logs {name}`")
    return Proved(acceptance_length=None, drafts=0, passed=True)
