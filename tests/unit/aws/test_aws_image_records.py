"""The records of pushed images, and the findings that they give for a plan."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.aws import ecr
from peagle.aws.ecr import PushedImage, record_push, remove_image_resources
from peagle.errors import UserError
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
    return plan.model_copy(update={"drafter": plan.drafter.model_copy(update={"name": "own"})})


@pytest.mark.parametrize(
    ("pushed", "plan", "codes"),
    [
        (PushedImage(OURS, baked=False), a_plan(), []),
        (PushedImage(OURS, baked=True), _baked(), []),
        (PushedImage(OURS, baked=False), _alone(), []),
        (PushedImage(OURS, baked=False), _own_head(), []),
        (PushedImage(OURS, baked=True), a_plan(), ["image-has-weights"]),
        (PushedImage(OURS, baked=False), _baked(), ["image-without-weights"]),
        (PushedImage("b/other+b/head", baked=False), a_plan(), ["image-of-another-pair"]),
        (PushedImage("a/target+a/eagle3", baked=False), a_plan(), ["image-of-another-pair"]),
        (PushedImage("b/other+b/head", baked=True), _baked(), ["image-of-another-pair"]),
    ],
)
def test_an_image_that_is_not_for_the_plan_is_refused(
    world: World, pushed: PushedImage, plan: Plan, codes: list[str]
) -> None:
    record_push(world.aws, pushed, IMAGE)

    found = world.preflight(plan).findings

    assert [(finding.code, finding.level) for finding in found] == [
        (code, "error") for code in codes
    ]
    assert all(IMAGE in finding.message and finding.fix for finding in found)


def test_images_pushed_from_elsewhere_have_no_findings(world: World) -> None:
    record_push(world.aws, PushedImage("b/other", baked=True), "another")
    assert world.preflight(a_plan()).findings == ()
    record_push(world.aws, PushedImage("b/other", baked=True), IMAGE)
    assert world.preflight(a_plan()).findings != ()
    remove_image_resources(world.aws, print)
    assert world.preflight(a_plan()).findings == ()


@pytest.mark.parametrize("content", ['{"a', '[{"name": 1}]', '{"x": {"pair": "p"}}', "3"])
def test_a_damaged_record_is_an_error_with_its_path(world: World, content: str) -> None:
    for path in (ecr._file(world.aws), ecr._file(world.aws, ".pushed")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    for read in (
        lambda: ecr.image_resources(world.aws),
        lambda: remove_image_resources(world.aws, print),
        lambda: world.preflight(a_plan()),
    ):
        with pytest.raises(UserError) as raised:
            read()
        assert raised.value.code == "record-damaged"
        assert str(path.parent) in raised.value.message
