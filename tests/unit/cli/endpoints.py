"""Endpoints as the records of this machine have them."""

from peagle.deploy import records
from peagle.deploy.state import Deployment, Resource, ResourceType
from peagle.planning.plan import Mount
from tests.unit.aws.plans import a_plan, a_revision


def deployed(
    uri: str, kind: ResourceType = "Endpoint", scope: str = "sandbox", name: str = "peagle-chat"
) -> None:
    """Record one that has mounted ``uri``, or with another ``kind`` what was made before it."""
    plan = a_plan(mounts=(Mount(channel=None, s3_uri=uri),))
    pending = a_revision(plan, "models", "0a")
    made = Resource(type=kind, name="n", made=True, revision="0a")
    records.save(Deployment(name=name, scope=scope, account="1", region="us-east-1",
                            pending=pending, resources=(made,)))  # fmt: skip
