"""Each format as one description of the endpoint that it creates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from peagle.planning import Plan
from peagle.render import render, requests
from peagle.render.requests import OWNER_TAG, STACK_TAG
from tests.unit.rendering.plans import BUCKET, CATALOG, ROLE


@dataclass(frozen=True)
class Described:
    """An endpoint, in any format. Channel ``None`` is the model itself."""

    endpoint: str
    role: str
    image: str
    environment: dict[str, str]
    mounts: dict[str | None, str]
    variant: dict[str, Any]
    tags: dict[str, str] = field(default_factory=dict)


def from_api(model: dict[str, Any], config: dict[str, Any], endpoint: dict[str, Any]) -> Described:
    """From the parameters of the three calls."""
    container, (variant,) = model["PrimaryContainer"], config["ProductionVariants"]
    sources = (
        [{"ChannelName": None, **container["ModelDataSource"]}]
        if ("ModelDataSource" in container)
        else []
    )
    sources += container.get("AdditionalModelDataSources", [])
    return Described(
        endpoint=endpoint["EndpointName"],
        role=model["ExecutionRoleArn"],
        image=container["Image"],
        environment=container["Environment"],
        mounts={s["ChannelName"]: s["S3DataSource"]["S3Uri"] for s in sources},
        variant={key: value for key, value in variant.items() if key != "ModelName"},
        tags=_without_owner({tag["Key"]: tag["Value"] for tag in endpoint["Tags"]}),
    )


def _without_owner(tags: dict[str, str]) -> dict[str, str]:
    """The tags that all formats share; the golden files have those of the owner."""
    return {key: value for key, value in tags.items() if key not in (OWNER_TAG, STACK_TAG)}


def from_requests(plan: Plan) -> Described:
    """From the plan's own requests."""
    filled = json.loads(
        json.dumps([request.parameters for request in requests(plan)])
        .replace("${ExecutionRoleArn}", ROLE)
        .replace("${ModelBucket}", BUCKET)
    )
    return from_api(*filled)


def from_cloudformation(plan: Plan) -> Described:
    """From the template, with the parameters filled in."""
    (template,) = [f for f in render("cloudformation", plan, CATALOG) if f.path == "template.yaml"]
    resources = yaml.safe_load(template.content)["Resources"]
    resolved = _resolved({name: resources[name]["Properties"] for name in resources})
    return from_api(resolved["Model"], resolved["EndpointConfig"], resolved["Endpoint"])


def _resolved(value: Any) -> Any:
    known = {"ExecutionRoleArn": ROLE, "ModelBucket": BUCKET, "AWS::StackName": "stack"}
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Ref"}:
        return known[value["Ref"]]
    if set(value) == {"Fn::Sub"}:
        text = value["Fn::Sub"]
        for name, parameter in known.items():
            text = text.replace(f"${{{name}}}", parameter)
        return text
    return {key: _resolved(item) for key, item in value.items()}


_VARIANT = {
    "VariantName": "variant_name",
    "InitialInstanceCount": "initial_instance_count",
    "InstanceType": "instance_type",
    "InitialVariantWeight": "initial_variant_weight",
    "ModelDataDownloadTimeoutInSeconds": "model_data_download_timeout_in_seconds",
    "ContainerStartupHealthCheckTimeoutInSeconds": (
        "container_startup_health_check_timeout_in_seconds"
    ),
    "InferenceAmiVersion": "inference_ami_version",
}


def from_terraform(plan: Plan) -> Described:
    """From the configuration, with the variables filled in and escaped templates resolved."""
    (main,) = [f for f in render("terraform", plan, CATALOG) if f.path == "main.tf.json"]
    resources = json.loads(main.content, object_hook=_interpolated)["resource"]
    model = resources["aws_sagemaker_model"]["this"]
    (variant,) = resources["aws_sagemaker_endpoint_configuration"]["this"]["production_variants"]
    endpoint = resources["aws_sagemaker_endpoint"]["this"]
    (container,) = model["primary_container"]
    described = {key: variant.pop(name) for key, name in _VARIANT.items() if name in variant}
    if "routing_config" in variant:
        (routing,) = variant.pop("routing_config")
        described["RoutingConfig"] = {"RoutingStrategy": routing.pop("routing_strategy")}
        assert routing == {}
    assert set(variant) == {"model_name"}
    sources = container.get("model_data_source", [])
    sources += container.get("additional_model_data_source", [])
    return Described(
        endpoint=endpoint["name"],
        role=model["execution_role_arn"],
        image=container["image"],
        environment=container["environment"],
        mounts={s.get("channel_name"): s["s3_data_source"][0]["s3_uri"] for s in sources},
        variant=described,
        tags=_without_owner(endpoint["tags"]),
    )


def _interpolated(block: dict[str, Any]) -> dict[str, Any]:
    known = {"${var.execution_role_arn}": ROLE, "${var.model_bucket}": BUCKET}

    def text(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        for name, filled in known.items():
            value = value.replace(name, filled)
        return value.replace("$${", "${").replace("%%{", "%{")

    return {key: text(value) for key, value in block.items()}


_FAKE_BOTO3 = """\
import json, os, sys
from botocore.exceptions import ClientError, NoCredentialsError

class Client:
    def __init__(self, service):
        self.service, self.there = service, {}
        if os.environ["FAKE_THERE"]:
            self.there["endpoint", os.environ["FAKE_THERE"]] = {"EndpointConfigName": "earlier"}

    def upload_file(self, path, bucket, key):
        record("upload_file", dict(path=path, bucket=bucket, key=key))

    def __getattr__(self, operation):
        def call(**parameters):
            if os.environ["FAKE_STATUS"] == "no credentials":
                raise NoCredentialsError()
            if os.environ["FAKE_STATUS"] == "denied" and operation.startswith("create_"):
                denied = {"Error": {"Code": "AccessDeniedException", "Message": "you\\nmay not"}}
                raise ClientError(denied, operation)
            name = [v for k, v in parameters.items() if k.endswith("Name")][0]
            if operation.startswith("describe_"):
                kind = operation.removeprefix("describe_")
                if (kind, name) not in self.there:
                    error = {"Error": {"Code": "ValidationException", "Message": "not found"}}
                    raise ClientError(error, operation)
                found = self.there[kind, name]
                return {**found, "EndpointStatus": os.environ["FAKE_STATUS"],
                        "FailureReason": "it broke"}
            record(operation, parameters)
            verb, _, kind = operation.partition("_")
            if verb == "create":
                self.there[kind, name] = parameters
            return {}
        return call

class Session:
    def __init__(self, region_name=None):
        record("session", {"region": region_name})

    def client(self, service):
        return CLIENTS.setdefault(service, Client(service))

CLIENTS = {}

def record(operation, parameters):
    with open(os.environ["FAKE_CALLS"], "a") as calls:
        calls.write(json.dumps([operation, parameters]) + "\\n")
"""


def run_script(
    plan: Plan, folder: Path, *arguments: str, status: str = "InService", there: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[tuple[str, dict[str, Any]]]]:
    """Run ``deploy.py`` with a boto3 that only records its calls.

    ``there`` is the name of an endpoint that exists already.
    """
    (deploy,) = [f for f in render("boto3", plan, CATALOG) if f.path == "deploy.py"]
    (folder / "deploy.py").write_bytes(deploy.content)
    (folder / "boto3").mkdir(exist_ok=True)
    (folder / "boto3" / "__init__.py").write_text(_FAKE_BOTO3)
    (folder / "boto3" / "exceptions.py").write_text("class Boto3Error(Exception): pass\n")
    calls = folder / "calls.jsonl"
    calls.write_text("")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(folder / "deploy.py"), *arguments],
        env={**os.environ, "FAKE_CALLS": str(calls), "FAKE_STATUS": status, "FAKE_THERE": there},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, [tuple(json.loads(line)) for line in calls.read_text().splitlines()]


def from_script(plan: Plan, folder: Path) -> Described:
    """From the calls that ``deploy.py`` makes."""
    options = ["--role", ROLE]
    uploads = [mount for mount in plan.mounts if "${ModelBucket}" in mount.s3_uri]
    if uploads:
        options += ["--bucket", BUCKET]
    for part in ("target", "drafter"):
        weights = plan.target.weights if part == "target" else None
        if part == "drafter" and plan.drafter is not None:
            weights = plan.drafter.weights
        if weights is not None and weights.kind == "directory":
            (folder / part).mkdir()
            (folder / part / "config.json").write_text("{}")
            options += [f"--{part}", str(folder / part)]
    done, calls = run_script(plan, folder, *options)
    assert done.returncode == 0, done.stderr
    made = dict(calls)
    return from_api(made["create_model"], made["create_endpoint_config"], made["create_endpoint"])
