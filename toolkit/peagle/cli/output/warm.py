"""What ``peagle warm`` says before and after."""

from __future__ import annotations

from typing import Any

import click

from peagle.cli.output.console import say
from peagle.cli.output.weights import size_words
from peagle.deploy.context import limit_seconds
from peagle.deploy.desired import DesiredState
from peagle.deploy.state import Deployment
from peagle.planning import Plan
from peagle.text import dollars, in_words, price_words
from peagle.warm.endpoint import Stored
from peagle.warm.transfer import WarmArtifact
from peagle.weights import Place
from peagle_serve.contract import WARM_FOLDER

_USUAL_MINUTES = 15
"""A machine, the weights, a cold start of two or three minutes, the proof, and the end of it."""

_SANDBOX_MINUTES = 3


def show_intent(desired: DesiredState, place: Place, sandbox: bool) -> None:
    """What follows the deployment, for how long about, and what that costs: on stderr."""
    minutes = _SANDBOX_MINUTES if sandbox else _USUAL_MINUTES
    at_most = limit_seconds(desired.revision) / 60
    price = desired.plan.price_per_hour_usd
    about = "" if price is None else f", about {dollars(price * minutes / 60)}"
    free = " on AWS (nothing in the sandbox)" if sandbox and about else ""
    say(f"  {'then':<12}stores compile caches in {place.folder(WARM_FOLDER)}, removes the endpoint")
    say(f"  {'takes':<12}about {minutes} minutes, {at_most:.0f} at most{about}{free}")


def show_heard(desired: DesiredState, record: Deployment, sandbox: bool) -> None:
    """An interrupt was heard: what is done about it, for how long at most, and what a second one
    leaves. On stderr."""
    if not record.of_type("Endpoint"):
        return say("Interrupted: removing what was made; no endpoint was begun.")
    at_most = limit_seconds(desired.revision) / 60
    price = price_words(desired.plan.price_per_hour_usd, sandbox)
    say(f"Interrupted: removing {record.name}. SageMaker deletes no endpoint that is still being "
        f"created, so this can wait for {at_most:.0f} minutes at most.")  # fmt: skip
    return say(f"A second Ctrl-C leaves it there, at a price of: {price}.")


def say_ended(removed: str, again: str) -> None:
    """After an interrupt: what is gone, and the command that begins anew. On stderr."""
    say(f"Interrupted: {removed}. A warm start is kept at the end only, so begin anew: {again}")


def print_stored(plan: Plan, stored: Stored, seconds: float, sandbox: bool) -> None:
    """What lies in S3 now, and who finds it."""
    click.secho(f"{stored.uri} is there: {_contents(stored.artefact)}", bold=True)
    if stored.stand_in:
        click.echo(f"{stored.stand_in} stood in for the pair, and only starts of it can use this.")
    price = plan.price_per_hour_usd
    cost = f", about {dollars(price * seconds / 3600)}" if price is not None and not sandbox else ""
    click.echo(f"{plan.name} is removed; it was there for {in_words(seconds)}{cost}.")
    click.echo("The next start with the same image, GPU and options restores it.")
    if stored.others:
        count, size = len(stored.others), size_words(sum(stored.others.values()))
        click.echo(f"{count} for other images, GPUs or options lie beside it ({size}), which every "
                   f"start downloads too: peagle weights list {stored.place.uri}")  # fmt: skip


def print_kept(artefact: WarmArtifact, by_itself: str) -> None:
    """What lies on this machine now; ``by_itself`` is the command that finds it, if any."""
    click.secho(f"{artefact.archive} is there: {_contents(artefact)}", bold=True)
    if by_itself:
        click.echo(f"Restores it:  {by_itself}")
    else:
        click.echo("An engine restores it when PEAGLE_WARM_FOLDER names the folder.")


def stored_document(plan: Plan, stored: Stored, seconds: float) -> dict[str, Any]:
    """What ``--json`` prints of an artefact in S3."""
    return {
        "pair": plan.pair,
        "uri": stored.uri,
        **_document(stored.artefact),
        "region": plan.region,
        "instance_type": plan.instance_type,
        "endpoint": plan.name,
        "endpoint_seconds": round(seconds, 1),
        "stand_in": stored.stand_in,
        "others": [{"key": key, "bytes": size} for key, size in stored.others.items()],
    }


def kept_document(pair: str, artefact: WarmArtifact) -> dict[str, Any]:
    """What ``--json`` prints of an artefact on this machine."""
    return {"pair": pair, "file": str(artefact.archive), **_document(artefact)}


def _document(artefact: WarmArtifact) -> dict[str, Any]:
    return {
        "key": artefact.key,
        "bytes": artefact.size,
        "sha256": artefact.sha256,
        "files": artefact.files,
        "unpacked_bytes": artefact.unpacked_bytes,
        "seconds_cold": artefact.seconds_cold,
    }


def _contents(artefact: WarmArtifact) -> str:
    return (
        f"{size_words(artefact.size)}, {artefact.files:,} files; without it the engine took "
        f"{artefact.seconds_cold:.0f} s to start"
    )
