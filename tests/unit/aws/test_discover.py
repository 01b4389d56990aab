"""Deployments are found by their tags, on a machine that did not make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.aws.errors import AccessDenied
from peagle.catalog import load_catalog
from peagle.catalog.tables import InstanceTable
from peagle.deploy import state as records
from peagle.deploy.discover import find_deployment, find_deployments
from peagle.deploy.owner import adopt, require_own
from peagle.deploy.state import Deployment
from tests.support import raises_code
from tests.unit.aws.cloud import service_error
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.templates import by_template
from tests.unit.aws.world import NAME, World


def prices() -> InstanceTable:
    return load_catalog().instances


def elsewhere(world: World) -> Deployment:
    """The deployment as a second machine finds it."""
    record = world.record()
    if record:
        records.remove_record(record)
    found = find_deployment(world.aws, NAME, prices)
    assert found is not None
    return found


def test_a_deployment_is_found_without_its_record(world: World, head: Path) -> None:
    made = world.deploy(a_plan(head))

    found = elsewhere(world)

    assert made.serving is not None
    assert found.serving is not None
    assert found.id == made.id
    assert found.serving.fingerprint == made.serving.fingerprint
    assert found.serving.served == made.serving.served.model_copy(update={"price_date": None})
    assert found.owner == ""
    assert {r.type for r in found.resources} == {r.type for r in made.resources}
    assert found.of_type("S3Objects")[0].keys == made.of_type("S3Objects")[0].keys


def test_the_proof_is_found(world: World) -> None:
    made = world.deploy(a_plan())

    found = elsewhere(world)

    assert made.serving is not None
    assert found.serving is not None
    assert found.serving.proof is not None
    assert found.serving.proof.passed
    assert made.serving.proof is not None
    assert found.serving.proof.drafts == made.serving.proof.drafts


def test_a_model_without_an_endpoint_is_found(world: World) -> None:
    def end(operation: str) -> None:
        if operation == "create_endpoint_config":
            raise KeyboardInterrupt

    world.cloud.before = end
    with pytest.raises(KeyboardInterrupt):
        world.deploy(a_plan())
    world.cloud.before = lambda operation: None

    found = elsewhere(world)

    assert [r.type for r in found.resources] == ["Model"]
    assert found.current.served.image == a_plan().runtime.image


def test_what_was_deleted_a_moment_ago_is_not_found(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.deleted = dict(world.cloud.tags)
    world.destroy()

    assert find_deployment(world.aws, NAME, prices) is None


def test_without_the_permission_it_is_unknown(world: World) -> None:
    def deny(operation: str) -> None:
        if operation == "get_resources":
            raise service_error("AccessDeniedException", "no", "GetResources")

    world.cloud.before = deny

    with pytest.raises(AccessDenied) as caught:
        find_deployment(world.aws, NAME, prices)

    assert "tag:GetResources" in caught.value.fix


@pytest.mark.parametrize(
    ("owner", "tag", "said"),
    [
        ("terraform", None, "a Terraform module"),
        ("cloudformation", "chat", "CloudFormation stack chat"),
        ("boto3", None, "a rendered boto3 script"),
    ],
)
def test_a_template_owns_what_it_made(world: World, owner: str, tag: str | None, said: str) -> None:
    more = [{"Key": "peagle:stack", "Value": tag}] if tag else []
    by_template(world, a_plan(), owner, *more)

    (found,) = find_deployments(world.aws, prices)

    assert (found.name, found.owner) == (NAME, said)
    with raises_code("other-owner") as caught:
        require_own(found)
    assert caught.value.command == ("peagle", "adopt", NAME)


def test_an_adopted_deployment_is_updated_and_removed(world: World) -> None:
    by_template(world, a_plan(), "terraform")
    found = find_deployment(world.aws, NAME, prices)
    assert found is not None
    with raises_code("other-owner"):
        world.deploy(another(a_plan()))

    adopt(world.aws, found)
    record = world.deploy(another(a_plan()))

    assert record.id == found.id
    assert record.serving is not None
    assert world.cloud.endpoints[NAME].config == record.serving.config
    world.destroy()
    assert world.cloud.is_empty


def test_an_interrupted_adoption_changes_no_owner_and_is_repeated(world: World) -> None:
    by_template(world, a_plan(), "terraform")
    found = find_deployment(world.aws, NAME, prices)
    assert found is not None
    calls = 0

    def end(operation: str) -> None:
        nonlocal calls
        calls += operation == "add_tags"
        if calls == 3:
            raise KeyboardInterrupt

    world.cloud.before = end
    with pytest.raises(KeyboardInterrupt):
        adopt(world.aws, found)
    world.cloud.before = lambda operation: None

    again = find_deployment(world.aws, NAME, prices)

    assert again is not None
    assert again.owner == "a Terraform module"
    assert adopt(world.aws, again).owner == ""
    assert elsewhere(world).owner == ""


def test_what_carries_no_tags_of_ours_cannot_be_adopted(world: World) -> None:
    world.cloud._create_model("theirs", [])
    variants = [{"ModelName": "theirs"}]
    world.cloud._create_endpoint_config("theirs", [], ProductionVariants=variants)
    world.cloud._create_endpoint(NAME, "theirs", [])

    assert find_deployment(world.aws, NAME, prices) is None
