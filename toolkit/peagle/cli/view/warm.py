"""What ``peagle warm`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peagle.cli.context import command_text
from peagle.cli.view.console import (
    print_document,
    print_facts,
    print_line,
    print_next,
    print_status,
)
from peagle.deploy.context import limit_seconds
from peagle.deploy.preflight import DesiredState
from peagle.deploy.state import Deployment
from peagle.errors import command_line
from peagle.planning import Plan
from peagle.text import format_price, format_usd
from peagle.warm import CollectedWarmStart, WarmArtifact
from peagle.weights.layout import WeightsPrefix
from peagle_serve.contract import WARM_FOLDER

_USUAL_MINUTES = 15
"""An instance, the weights, a cold start of two or three minutes, the proof, and the removal."""

_SANDBOX_MINUTES = 3


def show_intent(desired: DesiredState, place: WeightsPrefix, sandbox: bool) -> None:
    """Say what follows the deployment, how long it takes, and what that costs."""
    minutes = _SANDBOX_MINUTES if sandbox else _USUAL_MINUTES
    at_most = limit_seconds(desired.revision) / 60
    price = desired.plan.price_per_hour_usd
    about = "" if price is None else f", about {format_usd(price * minutes / 60)}"
    free = " on AWS (free in the sandbox)" if sandbox and about else ""
    folder = place.part_uri(WARM_FOLDER)
    facts = (
        ("then", f"stores compile caches in {folder}, removes the endpoint"),
        ("takes", f"about {minutes} minutes, {at_most:.0f} at most{about}{free}"),
    )
    print_facts(facts)


def say_interrupt(desired: DesiredState, record: Deployment, sandbox: bool) -> None:
    """Print what is removed after an interrupt, and what a second interrupt leaves."""
    if not record.of_type("Endpoint"):
        return print_status("Interrupted: removing what was created; there is no endpoint yet.")
    at_most = limit_seconds(desired.revision) / 60
    price = format_price(desired.plan.price_per_hour_usd, sandbox)
    print_status(
        f"Interrupted: removing {record.name}. SageMaker cannot delete an endpoint while it is "
        f"being created, so this takes up to {at_most:.0f} minutes."
    )
    return print_status(f"A second Ctrl-C leaves the endpoint running, at {price}.")


def say_interrupted(removed: str, again: Sequence[str]) -> None:
    """Say what was removed after an interrupt, and the command that starts over."""
    print_status(f"Interrupted: {removed}. Nothing was kept. Start over", command_line(again))


def print_collected(plan: Plan, stored: CollectedWarmStart, sandbox: bool) -> None:
    """Print the artifact in S3, and which starts use it."""
    print_line(f"{stored.uri} is stored", bold=True)
    print_document(collected_document(plan, stored))
    if plan.price_per_hour_usd is not None and not sandbox:
        usd = plan.price_per_hour_usd * stored.seconds / 3600
        print_line(f"The endpoint is removed; it cost about {format_usd(usd)}.")
    print_line(
        "Only the sandbox can use it."
        if stored.stand_in
        else "The next deploy of the same image, GPU and options pins and restores it. What is "
        "deployed now restores only what its plan pins."
    )
    if stored.others:
        listing = ("peagle", "weights", "list", stored.place.uri)
        print_line("Every start downloads the others too", command_text(listing))


def print_local(pair: str, artifact: WarmArtifact, restore: str) -> None:
    """Print the artifact on this machine; ``restore`` is the command that uses it, if any."""
    print_line(f"{artifact.archive} is stored", bold=True)
    print_document(local_document(pair, artifact))
    if restore:
        print_next("Restore it", restore)
    else:
        print_line(
            "An engine restores it when PEAGLE_WARM_FOLDER is set to the folder, and "
            "PEAGLE_WARM_SHA256 to this SHA-256."
        )


def collected_document(plan: Plan, stored: CollectedWarmStart) -> dict[str, Any]:
    """What ``--json`` prints about an artifact in S3."""
    return {
        "pair": plan.pair,
        "uri": stored.uri,
        **_document(stored.artifact),
        "region": plan.region,
        "instance_type": plan.instance_type,
        "endpoint": plan.name,
        "endpoint_seconds": round(stored.seconds, 1),
        "stand_in": stored.stand_in,
        "others": [{"key": key, "bytes": size} for key, size in stored.others.items()],
    }


def local_document(pair: str, artifact: WarmArtifact) -> dict[str, Any]:
    """What ``--json`` prints about an artifact on this machine."""
    return {"pair": pair, "file": str(artifact.archive), **_document(artifact)}


def _document(artifact: WarmArtifact) -> dict[str, Any]:
    return {
        "key": artifact.key,
        "bytes": artifact.size,
        "sha256": artifact.sha256,
        "files": artifact.files,
        "unpacked_bytes": artifact.unpacked_bytes,
        "seconds_cold": artifact.seconds_cold,
    }
