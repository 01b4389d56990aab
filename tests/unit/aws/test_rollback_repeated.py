"""A rollback that was interrupted is continued until its result is reported, and then undone."""

from __future__ import annotations

import pytest

from peagle.errors import NotProved
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World


@pytest.mark.thorough
def test_a_rollback_that_abandons_an_update_returns_to_the_same_one_again(
    world: World, updated: tuple[str, str]
) -> None:
    """Killed while what served is proved again, when nothing is pending any more."""
    world.cloud.engine.acceptance = 1.4
    with pytest.raises(NotProved):
        world.deploy(a_plan(environment={"SM_VLLM_MODEL": "b"}), keep_unproved=True)
    world.cloud.engine.acceptance = 3.0

    def kill(operation: str) -> None:
        if operation == "invoke_endpoint":
            raise KeyboardInterrupt

    world.cloud.before = kill
    with pytest.raises(KeyboardInterrupt):
        world.rollback()
    world.cloud.before = lambda operation: None
    world.rollback()
    assert world.serves() == updated[1]
    assert world.state() == "InService"


@pytest.mark.thorough
@pytest.mark.parametrize("is_new", [True, False])
def test_a_deploy_ends_the_intent_of_a_rollback(
    world: World, updated: tuple[str, str], is_new: bool
) -> None:
    world.rollback_unreported()
    world.deploy(another(a_plan()) if is_new else a_plan())
    world.rollback()
    assert world.serves() == (updated[0] if is_new else updated[1])


def test_a_rollback_is_repeated_where_the_endpoint_failed_since(
    world: World, updated: tuple[str, str]
) -> None:
    world.rollback_unreported()
    world.cloud.endpoints[NAME].script = [("Failed", "no reason")]
    world.rollback()
    assert world.serves() == updated[0]
    assert world.state() == "InService"
