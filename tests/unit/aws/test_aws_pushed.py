"""Images that were pushed from here are compared with the plan before anything is created."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.aws.image_records import Pushed, forget, remember
from peagle.planning.plan import Plan, Weights
from tests.unit.aws.plans import IMAGE, a_plan
from tests.unit.aws.world import World

OURS = "a/target+a/head"


def _baked(**changes: Any) -> Plan:
    """The plan whose weights are in its image."""
    plan = a_plan(**changes)
    weights = Weights(kind="image", location="a/target", engine_path="a/target")
    return plan.model_copy(
        update={"target": plan.target.model_copy(update={"weights": weights}), "mounts": ()}
    )


def _alone() -> Plan:
    """The target without its drafter."""
    return a_plan(drafter=None, speculation=None, pair="a/target")


def _own_head() -> Plan:
    plan = a_plan(pair="a/target+s3://models/head/")
    assert plan.drafter is not None
    return plan.model_copy(update={"drafter": plan.drafter.model_copy(update={"name": "own"})})


@pytest.mark.parametrize(
    ("pushed", "plan", "codes"),
    [
        (Pushed(OURS, baked=False), a_plan(), []),
        (Pushed(OURS, baked=True), _baked(), []),
        (Pushed(OURS, baked=False), _alone(), []),
        (Pushed(OURS, baked=False), _own_head(), []),
        (Pushed(OURS, baked=True), a_plan(), ["image-has-weights"]),
        (Pushed(OURS, baked=False), _baked(), ["image-without-weights"]),
        (Pushed("b/other+b/head", baked=False), a_plan(), ["image-of-another-pair"]),
        (Pushed("a/target+a/eagle3", baked=False), a_plan(), ["image-of-another-pair"]),
        (Pushed("b/other+b/head", baked=True), _baked(), ["image-of-another-pair"]),
    ],
)
def test_an_image_that_is_not_for_the_plan_is_refused(
    world: World, pushed: Pushed, plan: Plan, codes: list[str]
) -> None:
    remember(world.aws, IMAGE, pushed)

    found = world.look(plan).findings

    assert [(finding.code, finding.level) for finding in found] == [
        (code, "error") for code in codes
    ]
    assert all(IMAGE in finding.message and finding.fix for finding in found)


def test_of_images_that_others_pushed_nothing_is_said(world: World) -> None:
    remember(world.aws, "another", Pushed("b/other", baked=True))
    assert world.look(a_plan()).findings == ()
    remember(world.aws, IMAGE, Pushed("b/other", baked=True))
    assert world.look(a_plan()).findings != ()
    forget(world.aws)
    assert world.look(a_plan()).findings == ()
