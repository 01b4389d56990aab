"""Prove that an endpoint speculates: prompts, and what its engines count meanwhile."""

from __future__ import annotations

from typing import Any

from peagle import proof
from peagle.aws import runtime
from peagle.aws.client import Aws
from peagle.aws.errors import EngineRejected
from peagle.deploy.status import stand_in_of
from peagle.errors import Fix, NotProved
from peagle.planning.plan import Plan
from peagle.proof import Proof
from peagle.protocol import Counters, piece_of, request_body


def prove_endpoint(aws: Aws, plan: Plan, name: str) -> Proof:
    """Send the plan's prompts and compare the engine's counters before and after. Without
    speculation, any non-empty answer passes.

    The acceptance of a stand-in says nothing about the pair, so the pair's floor does not apply
    to it. Raises NotProved when the image exposes no counters or rejects a prompt, and EngineError
    when the endpoint does not answer.
    """
    if plan.speculation is None:
        return _prove_answer(aws, plan, name)
    readings = 0

    def read_counters() -> Counters:
        """With several instances, each reading may come from any of them.

        Two readings cannot be subtracted then, so the first one counts as zero, and the last one
        is that of the engine which has drafted most since it started.
        """
        nonlocal readings
        readings += 1
        if plan.instance_count == 1:
            return _counters(aws, plan, name)
        samples = 1 if readings == 1 else 4 * plan.instance_count
        best = max(
            (_counters(aws, plan, name) for _ in range(samples)), key=lambda read: read.drafts
        )
        return best.since(best) if readings == 1 else best

    is_stand_in = stand_in_of(aws, name) is not None
    return proof.prove(
        lambda body: _ask(aws, name, body),
        read_counters,
        prompts=plan.proof.prompts,
        chat=plan.proof.chat,
        max_tokens=plan.proof.max_tokens,
        floor=None if is_stand_in else plan.speculation.acceptance_floor,
    )


def _prove_answer(aws: Aws, plan: Plan, name: str) -> Proof:
    settings = plan.proof
    body = request_body(settings.prompts[0], chat=settings.chat, max_tokens=settings.max_tokens)
    if not piece_of(_ask(aws, name, body)).written:
        raise NotProved(
            f"{name} returned an empty answer",
            Fix("read the log", ("peagle", "logs", name)),
            code="empty-answer",
        )
    return Proof(None, 0, (), None, passed=True)


def _ask(aws: Aws, name: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        return runtime.ask(aws, name, body)
    except EngineRejected as error:
        raise NotProved(
            f"the engine rejected a proof prompt: {error.message}",
            "if the prompt exceeds the context, deploy with a larger --max-model-len",
            code="proof-prompt-rejected",
        ) from error


def _counters(aws: Aws, plan: Plan, name: str) -> Counters:
    counters = runtime.counters(aws, name)
    if counters is None:
        raise NotProved(
            f"the image of {name} exposes no speculation counters",
            Fix(
                "build and push an image with counters, then deploy it with --image URI",
                ("peagle", "image", "build", plan.pair, "--push"),
            ),
            code="no-speculation-counters",
        )
    return counters
