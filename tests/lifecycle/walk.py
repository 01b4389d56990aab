"""Run a walk: after each step nothing is lost, the cost is right, and what served still serves.

step        a command, which meets faults or is killed at any call; or what others do
then        every resource that exists is shown by `peagle status`; `peagle list` reports what the
            account costs; what was proved and in service still serves, unless the step removes it
again       the same command without faults ends as it must; ``judge`` knows how
end         destroy leaves nothing

A random operation on a random valid state covers chains of them, because every bad chain has a
valid state before its last step.
"""

from tests.faults.account import INSTANCE_TYPE, NAME
from tests.faults.commands import STUCK, Broken
from tests.lifecycle.judge import judge
from tests.lifecycle.steps import Step, Walk
from tests.lifecycle.world import Status, World

_BREAKING = ("out-of-service", "update-rollback-failed")
"""After these, AWS itself has ended what served."""


def run(world: World, walk: Walk) -> None:
    """Raise Broken with the violated invariant; the account is empty afterwards."""
    world.begin()
    status = world.status()
    try:
        for number, step in enumerate(walk.steps, 1):
            try:
                status = _take(world, step, status)
            except Broken as error:
                raise Broken(f"step {number}, {step.text}: {error}") from error
        _end(world, status)
    finally:
        world.inventory.remove_everything()


def _take(world: World, step: Step, before: Status) -> Status:
    """Take the step, which finds what ``status`` says ``before``; what it says afterwards."""
    action = step.definition
    if not action.command:
        world.others_do(step.action)
        return world.nothing_is_lost()
    scarce = INSTANCE_TYPE if action.scarce else ""
    with world.commands.conditions(action.acceptance, scarce):
        done = world.commands.with_faults(action.command, step.faults)
        if any(fault.kind == STUCK for fault in step.faults):
            world.commands.cost_is_right()
    after = world.nothing_is_lost()
    _still_serves(step, before, after)
    if not step.faults:
        assert done is not None
        judge(world, action, done, before, after)
    elif step.again:
        before = after
        with world.commands.conditions(action.acceptance, scarce):
            done = world.commands.peagle(action.command)
        try:
            after = world.nothing_is_lost()
            judge(world, action, done, before, after)
        except Broken as error:
            raise Broken(f"repeated: {error}") from error
    return after


def _still_serves(step: Step, before: Status, after: Status) -> None:
    """Raise Broken when a command has ended what served and was proved."""
    if before is None or before["state"] != "InService" or step.definition.kind == "destroy":
        return
    if any(fault.kind in _BREAKING for fault in step.faults):
        return
    if after is None or after["endpoint_status"] != "InService":
        raise Broken(f"what served does not: it is {after and after['endpoint_status']}")


def _end(world: World, shown: Status) -> None:
    """Destroy leaves nothing, regardless of the owner."""
    if shown and shown["owner"] != "peagle":
        world.others_do("endpoint-deleted")  # by its owner
    for _ in range(2):  # what a template left is its own until the endpoint is gone
        world.commands.expect_success(("destroy", NAME, "--all", "--yes"))
        if not world.left():
            return
    raise Broken(f"the last destroy left {sorted(world.left())}")
