"""Which images `peagle image` has pushed from this machine, and what is in them.

``$PEAGLE_HOME/images/<scope>/<region>.pushed.json``, by address. ECR itself tells no labels, so
what is written down here lets `peagle deploy` see that an image is not for its plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from toolkit.aws.session import Aws
from toolkit.findings import Finding, error
from toolkit.home import home, read_json, write_json
from toolkit.planning.models import Plan
from toolkit.planning.own_heads import OWN


@dataclass(frozen=True)
class Pushed:
    """The pair that an image was built for, and whether that pair's weights are in it."""

    pair: str
    baked: bool


def remember(aws: Aws, address: str, pushed: Pushed) -> None:
    """Write down what was pushed to that address."""
    write_json(_file(aws), {**(read_json(_file(aws)) or {}), address: asdict(pushed)})


def known(aws: Aws, address: str) -> Pushed | None:
    """What is in the image, if it was pushed from here."""
    found = (read_json(_file(aws)) or {}).get(address)
    return Pushed(**found) if found else None


def forget(aws: Aws) -> None:
    """When the repositories are gone."""
    _file(aws).unlink(missing_ok=True)


def image_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the plan's image is one for the plan. Nothing of images that others pushed."""
    image = plan.runtime.image
    found = known(aws, image)
    if found is None:
        return
    planned = plan.target.weights.kind == "image"
    if found.baked and not planned:
        yield error(
            "image-has-weights", "image",
            f"{image} has the weights of {found.pair} in it, and would serve those instead of "
            "the plan's",
            "add --baked-weights, or build an image without --bake-weights",
        )  # fmt: skip
    elif planned and not found.baked:
        message = f"{image} has no weights in it, and the plan mounts none"
        fix = "leave out --baked-weights, or build the image with --bake-weights"
        yield error("image-without-weights", "image", message, fix)
    elif _is_anothers(found, plan):
        yield error(
            "image-of-another-pair", "image",
            f"{image} was built for {found.pair}, and the plan is for {plan.pair}: the container "
            "would not start",
            f"plan for {found.pair}, or build an image for this plan: peagle image build",
        )  # fmt: skip


def _is_anothers(found: Pushed, plan: Plan) -> bool:
    """As the container's entrypoint sees it, which takes the target alone as well. What a head of
    the user's own is nobody knows, unless it is in the image."""
    if found.pair.partition("+")[0] != plan.target.id:
        return True
    if plan.drafter is None or (plan.drafter.name == OWN and not found.baked):
        return False
    return found.pair != plan.pair


def _file(aws: Aws) -> Path:
    return home() / "images" / aws.scope / f"{aws.region}.pushed.json"
