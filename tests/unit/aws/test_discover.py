"""Deployments are found by their tags, on a machine that did not make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.aws.errors import AccessDenied
from peagle.catalog import load_catalog
from peagle.catalog.tables import InstanceTable
from peagle.deploy import records
from peagle.deploy.discover import find_deployment, find_deployments
from peagle.deploy.removal import destroy
from peagle.deploy.revisions import require_own
from peagle.deploy.state import Deployment
from peagle.planning.plan import Observe
from tests.support import raises_code
from tests.unit.aws.network import refusing
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.templates import by_template
from tests.unit.aws.test_rollout_alarms import rolled_out
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
    assert found.id == made.id
    assert found.serving.fingerprint == made.serving.fingerprint
    assert found.serving.served == made.serving.served.model_copy(update={"price_date": None})
    assert found.owner == ""
    assert {r.type for r in found.resources} == {r.type for r in made.resources}
    assert found.of_type("S3Objects")[0].keys == made.of_type("S3Objects")[0].keys


def test_another_machine_removes_alarms_filters_and_dashboard(world: World) -> None:
    watched = rolled_out(a_plan()).model_copy(
        update={"observe": Observe(dashboard=True, log_retention_days=30)}
    )
    made = world.deploy(watched)
    theirs = {"Dimensions": [{"Name": "EndpointName", "Value": "pair"}]}
    world.cloud.made_alarms[f"{NAME}-ttft-p90"] = theirs
    found = elsewhere(world)
    destroy(world.context(found))
    assert {r.text for r in found.resources} == {r.text for r in made.resources}
    assert world.cloud.made_alarms == {f"{NAME}-ttft-p90": theirs}
    assert world.cloud.metric_filters == {}
    assert world.cloud.dashboards == {}


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
    world.cloud.before = refusing("get_resources", "AccessDeniedException", "no")
    with pytest.raises(AccessDenied) as caught:
        find_deployment(world.aws, NAME, prices)
    assert "tag:GetResources" in caught.value.fix


@pytest.mark.parametrize(
    ("owner", "tag", "said"),
    [
        ("terraform", None, "a Terraform module"),
        ("cloudformation", "chat", "CloudFormation stack chat"),
        ("cdk", None, "a CDK app"),
    ],
)
def test_a_template_owns_what_it_made(world: World, owner: str, tag: str | None, said: str) -> None:
    more = [{"Key": "peagle:stack", "Value": tag}] if tag else []
    by_template(world, a_plan(), owner, *more)
    (found,), _ = find_deployments(world.aws, prices)
    assert (found.name, found.owner) == (NAME, said)
    with raises_code("other-owner"):
        require_own(found)
    with raises_code("other-owner"):
        world.deploy(another(a_plan()))


def test_what_carries_no_tags_of_ours_is_not_found(world: World) -> None:
    world.cloud._create_model("theirs", [])
    variants = [{"ModelName": "theirs"}]
    world.cloud._create_endpoint_config("theirs", [], ProductionVariants=variants)
    world.cloud._create_endpoint(NAME, "theirs", [])
    assert find_deployment(world.aws, NAME, prices) is None


def test_an_endpoint_that_the_index_of_tags_does_not_have_yet_is_found(world: World) -> None:
    made = world.deploy(a_plan())
    world.cloud._get_resources = lambda **_: {"ResourceTagMappingList": []}  # type: ignore[method-assign]
    found = elsewhere(world)
    assert found.serving.name == made.serving.name
    assert found.serving.model == made.serving.model
    assert {one.type for one in found.resources} == {"Endpoint", "EndpointConfig", "Model"}


def test_what_another_deployment_owns_is_shown_and_not_removed(world: World, head: Path) -> None:
    world.deploy(a_plan(head))
    theirs = world.cloud.configs[world.cloud.endpoints[NAME].config]
    variants = [{**one, "InitialInstanceCount": 2} for one in theirs["ProductionVariants"]]
    tags = [{"Key": "peagle:deployment", "Value": "second"}]
    world.cloud._create_endpoint_config("second", [], ProductionVariants=variants)
    world.cloud._create_endpoint("second", "second", tags)
    found = find_deployment(world.aws, "second", prices)
    assert found.serving.served.k > 0
    assert found.serving.served.instance_count == 2
    assert [(one.type, one.name) for one in found.resources] == [("Endpoint", "second")]
    assert [one.name for one in find_deployments(world.aws, prices)[0]] == [NAME, "second"]


def test_a_configuration_that_was_deleted_while_it_serves_hides_nothing(world: World) -> None:
    made = world.deploy(a_plan())
    del world.cloud.configs[made.serving.name]
    del world.cloud.tags[world.cloud._arn("endpoint-config", made.serving.name)]
    found = elsewhere(world)
    assert found.serving.name == made.serving.name
    assert found.serving.fingerprint == made.serving.fingerprint
    assert found.serving.served.usd_per_hour is None
    assert found.serving.proof is not None
