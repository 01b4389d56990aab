"""The sandbox's account as AWS sees it: what exists, and what it costs."""

import json
from typing import Any

from botocore.exceptions import ClientError

from peagle.catalog import load_catalog
from peagle.data import weights_folder
from peagle.options import Options
from peagle.planning import make_plan
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render.requests import folders, owned_requests, with_replaced
from tests.sandbox.sandboxes import ROLE, Account, Sandbox, until

NAME = "peagle-tiny"
INSTANCE_TYPE = "ml.g5.xlarge"
BUCKET = "peagle-sagemaker-template"
_BUSY = ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting")
Resources = frozenset[tuple[str, str]]


class Inventory:
    """What a sandbox's account has, asked without the toolkit."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.account = Account(sandbox)
        self._prices = {
            instance.type: price.usd_per_hour
            for instance in load_catalog().instances.instances
            for price in instance.prices
            if price.region == "us-east-1"
        }

    def resources(self) -> Resources:
        """Type and name of everything; objects by their folder."""
        sagemaker, s3 = self.account.sagemaker, self.account.s3
        names = {("Endpoint", endpoint["EndpointName"]) for endpoint in self.endpoints()}
        for config in sagemaker.list_endpoint_configs()["EndpointConfigs"]:
            names.add(("EndpointConfig", config["EndpointConfigName"]))
        for model in sagemaker.list_models()["Models"]:
            names.add(("Model", model["ModelName"]))
        for bucket in s3.list_buckets()["Buckets"]:
            names.add(("S3Bucket", bucket["Name"]))
            for entry in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", ()):
                folder = entry["Key"].rpartition("/")[0]
                names.add(("S3Objects", f"s3://{bucket['Name']}/{folder}/"))
        return frozenset(names)

    def endpoints(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.account.sagemaker.list_endpoints()["Endpoints"]
        return listed

    def wait_until_stable(self) -> None:
        """Return once no endpoint is being changed."""
        until(
            self.endpoints,
            lambda items: all(endpoint["EndpointStatus"] not in _BUSY for endpoint in items),
        )

    def usd_per_hour(self) -> float:
        """What the instances of all endpoints cost, those too that are being created."""
        return round(sum(self._cost(endpoint["EndpointName"]) for endpoint in self.endpoints()), 4)

    def _cost(self, name: str) -> float:
        description = self._described(name)
        if description["EndpointStatus"] == "Failed" or "EndpointConfigName" not in description:
            return 0.0
        asked = self._asked(description)
        counts = {
            each["VariantName"]: int(each["CurrentInstanceCount"])
            for each in description.get("ProductionVariants") or []
        }
        if description["EndpointStatus"] == "Creating":
            counts = {each["VariantName"]: int(each["InitialInstanceCount"]) for each in asked}
        types = {each["VariantName"]: each["InstanceType"] for each in asked}
        return sum(
            self._prices[types.get(name, INSTANCE_TYPE)] * count for name, count in counts.items()
        )

    def _described(self, name: str) -> dict[str, Any]:
        """DescribeEndpoint; of one that has just been deleted, that nothing runs."""
        try:
            description: dict[str, Any] = self.account.describe(name)
        except ClientError:
            return {"EndpointStatus": "Deleting"}
        return description

    def states(self) -> dict[str, str]:
        """The status of every endpoint."""
        return {each["EndpointName"]: each["EndpointStatus"] for each in self.endpoints()}

    def served_k(self, name: str) -> int:
        """The speculated tokens in the model that the endpoint serves."""
        (variant,) = self._asked(self.account.describe(name))
        model = self.account.sagemaker.describe_model(ModelName=variant["ModelName"])
        settings = model["PrimaryContainer"]["Environment"]["SM_VLLM_SPECULATIVE_CONFIG"]
        return int(json.loads(settings)["num_speculative_tokens"])

    def _asked(self, endpoint: dict[str, Any]) -> list[dict[str, Any]]:
        """The variants of the endpoint's configuration; none of one that was deleted."""
        try:
            config = self.account.sagemaker.describe_endpoint_config(
                EndpointConfigName=endpoint["EndpointConfigName"]
            )
        except ClientError:
            return []
        variants: list[dict[str, Any]] = config["ProductionVariants"]
        return variants

    def deploy_by_template(self) -> None:
        """Deploy the tiny pair as a rendered Terraform module does, without this toolkit."""
        create_as(self.account, "terraform")
        self.wait_until_stable()

    def remove_everything(self) -> None:
        """Delete what a failed trial has left."""
        self.sandbox.reset()


def create_as(account: Account, owner: str) -> None:
    """Create the tiny pair's endpoint with the calls and tags of a rendered format."""
    plan = tiny_plan()
    account.s3.create_bucket(Bucket=BUCKET)
    for folder in folders(plan):
        for path in weights_folder(folder.location).iterdir():
            account.s3.upload_file(str(path), BUCKET, f"{folder.prefix}{path.name}")
    filled = {EXECUTION_ROLE: ROLE, MODEL_BUCKET: BUCKET}
    for request in owned_requests(plan, owner):
        create = getattr(account.sagemaker, request.operation)
        create(**with_replaced(request.parameters, filled))


def tiny_plan() -> Plan:
    """The tiny pair on the type of the trials."""
    return make_plan(Options(pair="tiny", instance_type=INSTANCE_TYPE), load_catalog())
