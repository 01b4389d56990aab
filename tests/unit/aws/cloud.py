"""A fake AWS account in memory: fast, scriptable, and interruptible before or after any call.

It refuses what AWS refuses where the code relies on it: duplicate names, changes of a busy
endpoint, configurations in use.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

from peagle.aws.client import Aws
from tests.packed import Packed
from tests.unit.aws.cloud_components import FakeComponents
from tests.unit.aws.fake_scheduler import FakeScheduler
from tests.unit.aws.network import Network
from tests.unit.aws.network import service_error as service_error

ACCOUNT = "111122223333"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/peagle-execution"
START = 1_800_000_000.0
TRUSTS_SAGEMAKER = {
    "Statement": [
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
        }
    ]
}
Hook = Callable[[str], None]


@dataclass
class FakeEndpoint:
    config: str
    arn: str
    script: list[tuple[str, str | None]]
    next_config: str | None = None
    changed: float = START
    updates: int = 0
    created: float = START
    count: int | None = None
    weights: dict[str, float] = field(default_factory=dict)


@dataclass
class Engine:
    """The engine behind the endpoint. ``acceptance`` None: an image without counters."""

    acceptance: float | None = 3.0
    drafts: int = 0
    tokens: tuple[str, ...] = ("Hello", " world")
    prompts: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.prompts.append(body)
        self.drafts += 10
        return {
            "choices": [{"message": {"content": "".join(self.tokens)}}],
            "usage": {"completion_tokens": len(self.tokens)},
        }

    def statistics(self) -> list[str]:
        """vLLM's lines of statistics about one answer; ``acceptance`` None: of one that does not
        speculate."""
        generated = "Engine 000: Avg prompt throughput: 9.1 tokens/s, Avg generation throughput: "
        lines = [f"INFO 11-22 08:00:10 [loggers.py:271] {generated}12.8 tokens/s, Running: 0 reqs"]
        if self.acceptance is None:
            return lines
        accepted = round((self.acceptance - 1) * 10)
        return [
            *lines,
            "INFO 11-22 08:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: "
            f"{1 + accepted / 10:.2f}, Accepted throughput: 1.00 tokens/s, Drafted throughput: "
            f"5.00 tokens/s, Accepted: {accepted} tokens, Drafted: 50 tokens, Per-position "
            f"acceptance rate: {', '.join([f'{accepted / 50:.3f}'] * 5)}, Avg Draft acceptance "
            f"rate: {2 * accepted:.1f}%",
        ]

    def counters(self) -> dict[str, Any]:
        if self.acceptance is None:
            raise service_error(
                "ModelError", "Received client error (400)", OriginalStatusCode=400,
                OriginalMessage='{"error": {"message": "no suitable handler"}}',
            )  # fmt: skip
        accepted = round((self.acceptance - 1) * self.drafts)
        return {
            "drafts": self.drafts,
            "draft_tokens": 5 * self.drafts,
            "accepted_tokens": accepted,
            "accepted_per_position": [accepted],
        }


class Cloud:
    """The state of the account, and hooks around every call."""

    def __init__(self) -> None:
        self.now = START
        self.models: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.endpoints: dict[str, FakeEndpoint] = {}
        self.components = FakeComponents(lambda text: service_error("ValidationException", text))
        self.tags: dict[str, dict[str, str]] = {}
        self.region = "us-east-1"
        self.deleted: dict[str, dict[str, str]] = {}
        self.buckets: dict[str, dict[str, dict[str, Any]]] = {}
        self.lifecycles: dict[str, list[dict[str, Any]]] = {}
        self.topics: dict[str, dict[str, str]] = {}
        self.bucket_tags: dict[str, list[dict[str, str]]] = {}
        self.roles: list[dict[str, Any]] = [
            {
                "RoleName": "peagle-execution",
                "Arn": ROLE,
                "AssumeRolePolicyDocument": TRUSTS_SAGEMAKER,
            }
        ]
        self.caller_arn = f"arn:aws:iam::{ACCOUNT}:user/someone"
        self.network = Network()
        self.quotas: dict[str, float] = {"ml.g5.xlarge for endpoint usage": 4}
        self.quota_codes: dict[str, str] = {}
        self.log: list[dict[str, Any]] = []
        self.log_groups: set[str] = set()
        self.metrics: dict[tuple[str, str], float] = {}
        self.metric_time: float | None = None
        self.alarms: dict[str, str] = {}
        self.made_alarms: dict[str, dict[str, Any]] = {}
        self.firing: set[str] = set()
        self.dashboards: dict[str, str] = {}
        self.retention: dict[str, int] = {}
        self.log_tags: dict[str, dict[str, str]] = {}
        self.metric_filters: dict[str, dict[str, Any]] = {}
        self.updates: list[dict[str, Any]] = []
        self.scaled: set[str] = set()
        self.bounds: dict[str, tuple[int, int]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.wake_up_policies: dict[str, dict[str, Any]] = {}
        self.scheduler = FakeScheduler(self)
        self.engine = Engine()
        self.streams: dict[str, Engine] = {}
        self.engines: dict[str, Engine] = {}
        self.log_delay = 0.0
        self._turn = 0
        self.packed = Packed()
        self.price: float | None = None
        self.digests: dict[str, str] = {"0.28.0": f"sha256:{28:064}"}
        self.not_allowed: set[str] = set()
        self.next_scripts: list[list[tuple[str, str | None]]] = []
        self.calls: list[str] = []
        self.before: Hook = lambda operation: None
        self.after: Hook = lambda operation: None

    @property
    def is_empty(self) -> bool:
        """Whether no resource is left that costs money or occupies a name."""
        kept = (self.models, self.configs, self.endpoints, self.buckets, self.scheduler.schedules)
        return not any(kept)

    def call(self, operation: str, **parameters: Any) -> Any:
        self.calls.append(operation)
        self.before(operation)
        try:
            owner = self if hasattr(self, f"_{operation}") else self.scheduler
            return getattr(owner, f"_{operation}")(**parameters)
        finally:
            self.after(operation)

    def _get_caller_identity(self) -> Any:
        return {"Account": ACCOUNT, "Arn": self.caller_arn}

    # EC2

    def _describe_subnets(self, SubnetIds: list[str]) -> Any:
        return {"Subnets": [self.network.described("Subnets", subnet) for subnet in SubnetIds]}

    def _describe_security_groups(self, GroupIds: list[str]) -> Any:
        return {"SecurityGroups": [self.network.described("SecurityGroups", i) for i in GroupIds]}

    def _describe_route_tables(self, Filters: Any) -> Any:
        return {"RouteTables": self.network.route_tables}

    def _describe_vpc_endpoints(self, Filters: Any) -> Any:
        return {"VpcEndpoints": self.network.endpoints}

    # IAM, quotas, prices, logs

    def _get_role(self, RoleName: str) -> Any:
        for role in self.roles:
            if role["RoleName"] == RoleName:
                return {"Role": role}
        raise service_error("NoSuchEntity", f"The role {RoleName} cannot be found.", "GetRole")

    def _simulate_principal_policy(
        self, PolicySourceArn: str, ActionNames: list[str], **_: Any
    ) -> Any:
        """``not_allowed``: the actions that the policies of every role lack."""
        self._get_role(PolicySourceArn.rpartition("/")[2])
        decision = {False: "allowed", True: "implicitDeny"}
        return {
            "EvaluationResults": [
                {"EvalActionName": action, "EvalDecision": decision[action in self.not_allowed]}
                for action in ActionNames
            ]
        }

    def _list_roles(self) -> Any:
        return {"Roles": self.roles}

    def _list_service_quotas(self, ServiceCode: str) -> Any:
        return {"Quotas": [{"QuotaName": n, "Value": v} for n, v in self.quotas.items()]}

    def _list_aws_default_service_quotas(self, ServiceCode: str) -> Any:
        return {"Quotas": []}

    def _get_service_quota(self, ServiceCode: str, QuotaCode: str) -> Any:
        for name, value in self.quotas.items():
            if self.quota_codes.get(name) == QuotaCode:
                quota = {"QuotaName": name, "Value": value, "QuotaCode": QuotaCode}
                return {"Quota": quota}
        raise service_error("NoSuchResourceException", "no such quota", "GetServiceQuota")

    def _get_products(self, **_: Any) -> Any:
        if self.price is None:
            return {"PriceList": []}
        row = {"instanceName": "ml.g5.xlarge", "component": "Hosting", "usagetype": "X-Host:y"}
        dimensions = {"d": {"pricePerUnit": {"USD": str(self.price)}}}
        terms = {"OnDemand": {"t": {"priceDimensions": dimensions}}}
        return {"PriceList": [json.dumps({"product": {"attributes": row}, "terms": terms})]}

    def _filter_log_events(
        self,
        logGroupName: str,
        startTime: int,
        endTime: int | None = None,
        logStreamNames: list[str] | None = None,
        filterPattern: str = "",
    ) -> Any:
        """Every event: what is asked for by a pattern is a part of them."""
        if not self.log:
            raise service_error(
                "ResourceNotFoundException", "The specified log group does not exist."
            )
        last = min(endTime or math.inf, (self.now - self.log_delay) * 1000)
        return {
            "events": [
                event
                for event in self.log
                if startTime <= event["timestamp"] <= last
                and (logStreamNames is None or event["logStreamName"] in logStreamNames)
            ]
        }

    def _get_metric_data(self, MetricDataQueries: Any, **_: Any) -> Any:
        """``metrics``: the value of each statistic in the last minute, or that of
        ``metric_time``."""
        now = datetime.fromtimestamp(self.metric_time or self.now, UTC)
        minute = now.replace(second=0, microsecond=0)
        results = []
        for query in MetricDataQueries:
            stat = query["MetricStat"]
            value = self.metrics.get((stat["Metric"]["MetricName"], stat["Stat"]))
            points = ([minute], [value]) if value is not None else ([], [])
            results.append({"Id": query["Id"], "Timestamps": points[0], "Values": points[1]})
        return {"MetricDataResults": results}

    def write_log(self, message: str, stream: str = "AllTraffic/i-1") -> None:
        """Write a line of an engine's log, now."""
        number = len(self.log)
        self.log.append(
            {"eventId": str(number), "timestamp": int(self.now * 1000),
             "logStreamName": stream, "message": message}
        )  # fmt: skip

    def _describe_log_groups(self, logGroupNamePrefix: str) -> Any:
        names = sorted(name for name in self.log_groups if name.startswith(logGroupNamePrefix))
        days = self.retention
        return {
            "logGroups": [
                {"logGroupName": name, **({"retentionInDays": days[name]} if name in days else {})}
                for name in names
            ]
        }

    def _delete_log_group(self, logGroupName: str) -> Any:
        self.log_groups.remove(logGroupName)
        return {}

    def _create_log_group(self, logGroupName: str, tags: dict[str, str] | None = None) -> Any:
        self.log_groups.add(logGroupName)
        self.log_tags[logGroupName] = tags or {}
        return {}

    def _put_retention_policy(self, logGroupName: str, retentionInDays: int) -> Any:
        if logGroupName not in self.log_groups:
            raise service_error("ResourceNotFoundException", "no such log group")
        self.retention[logGroupName] = retentionInDays
        return {}

    def _put_dashboard(self, DashboardName: str, DashboardBody: str) -> Any:
        self.dashboards[DashboardName] = DashboardBody
        return {"DashboardValidationMessages": []}

    def _get_dashboard(self, DashboardName: str) -> Any:
        if DashboardName not in self.dashboards:
            message = f"Dashboard {DashboardName} does not exist"
            raise service_error("ResourceNotFound", message)
        return {"DashboardName": DashboardName, "DashboardBody": self.dashboards[DashboardName]}

    def _delete_dashboards(self, DashboardNames: list[str]) -> Any:
        for name in DashboardNames:
            if self.dashboards.pop(name, None) is None:
                raise service_error("ResourceNotFound", f"Dashboard {name} does not exist")
        return {}

    def _put_metric_filter(self, logGroupName: str, filterName: str, **parameters: Any) -> Any:
        if logGroupName not in self.log_groups:
            message = "The specified log group does not exist."
            raise service_error("ResourceNotFoundException", message)
        self.metric_filters[filterName] = parameters
        return {}

    def _describe_metric_filters(self, logGroupName: str, filterNamePrefix: str) -> Any:
        matches = {
            name: body
            for name, body in self.metric_filters.items()
            if name.startswith(filterNamePrefix)
        }
        return {"metricFilters": [{"filterName": name, **body} for name, body in matches.items()]}

    def _delete_metric_filter(self, logGroupName: str, filterName: str) -> Any:
        if self.metric_filters.pop(filterName, None) is None:
            message = "The specified metric filter does not exist."
            raise service_error("ResourceNotFoundException", message)
        return {}

    def _put_metric_alarm(self, AlarmName: str, **parameters: Any) -> Any:
        self.made_alarms[AlarmName] = parameters
        return {}

    def _describe_alarms(self, AlarmNames: Any = (), StateValue: str = "") -> Any:
        if StateValue == "ALARM":
            return {
                "MetricAlarms": [
                    {"AlarmName": alarm} for alarm in sorted(self.firing & {*AlarmNames})
                ]
            }
        if AlarmNames:
            made = self.made_alarms
            return {
                "MetricAlarms": [
                    {"AlarmName": alarm, **made[alarm]} for alarm in AlarmNames if alarm in made
                ]
            }
        return {
            "MetricAlarms": [
                {"AlarmName": name, "Dimensions": [{"Name": "EndpointName", "Value": endpoint}]}
                for name, endpoint in self.alarms.items()
            ]
        }

    def _delete_alarms(self, AlarmNames: list[str]) -> Any:
        for name in AlarmNames:
            alarms = self.made_alarms if name in self.made_alarms else self.alarms
            if alarms.pop(name, None) is None:
                raise service_error("ResourceNotFound", f"{name} does not exist.")
        return {}

    def _describe_scalable_targets(
        self, ServiceNamespace: str, ResourceIds: list[str] | None = None
    ) -> Any:
        dimensions = {
            "endpoint": "sagemaker:variant:DesiredInstanceCount",
            "inference-component": "sagemaker:inference-component:DesiredCopyCount",
        }
        bounds = {endpoint: self.bounds.get(endpoint, (1, 2)) for endpoint in sorted(self.scaled)}
        return {
            "ScalableTargets": [
                {
                    "ResourceId": resource,
                    "ScalableDimension": dimensions[resource.partition("/")[0]],
                    "MinCapacity": least,
                    "MaxCapacity": most,
                }
                for resource, (least, most) in bounds.items()
                if not ResourceIds or resource in ResourceIds
            ]
        }

    def _deregister_scalable_target(self, ResourceId: str, **_: Any) -> Any:
        if ResourceId not in self.scaled:
            raise service_error("ObjectNotFoundException", "No scalable target found", "Deregister")
        self.scaled.remove(ResourceId)
        self.policies.pop(ResourceId, None)
        self.wake_up_policies.pop(ResourceId, None)
        return {}

    def _register_scalable_target(
        self, ResourceId: str, MinCapacity: int, MaxCapacity: int, **_: Any
    ) -> Any:
        self.scaled.add(ResourceId)
        self.bounds[ResourceId] = (MinCapacity, MaxCapacity)
        return {}

    def _put_scaling_policy(self, ResourceId: str, **policy: Any) -> Any:
        if ResourceId not in self.scaled:
            raise service_error("ObjectNotFoundException", "No scalable target found", "Put")
        arn = f"arn:aws:autoscaling:us-east-1:{ACCOUNT}:{policy['PolicyName']}"
        if policy["PolicyType"] == "StepScaling":
            self.wake_up_policies[ResourceId] = {**policy, "PolicyARN": arn}
        else:
            self.policies[ResourceId] = policy
        return {"PolicyARN": arn}

    def _delete_scaling_policy(self, ResourceId: str, **_: Any) -> Any:
        if ResourceId not in self.wake_up_policies:
            raise service_error("ObjectNotFoundException", "No scaling policy found", "Delete")
        del self.wake_up_policies[ResourceId]
        return {}

    def _describe_scaling_policies(self, ResourceId: str, **_: Any) -> Any:
        stored = (self.policies.get(ResourceId), self.wake_up_policies.get(ResourceId))
        return {"ScalingPolicies": [policy for policy in stored if policy]}

    def _update_endpoint_weights_and_capacities(
        self, EndpointName: str, DesiredWeightsAndCapacities: list[dict[str, Any]]
    ) -> Any:
        endpoint = self._find(self.endpoints, "endpoint", EndpointName)
        self._refuse_busy(endpoint)
        for variant in DesiredWeightsAndCapacities:
            endpoint.count = variant.get("DesiredInstanceCount", endpoint.count)
            if "DesiredWeight" in variant:
                endpoint.weights[variant["VariantName"]] = variant["DesiredWeight"]
        endpoint.script = self._script("Updating")
        return {}

    # SageMaker

    def _arn(self, kind: str, name: str) -> str:
        return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:{kind}/{name}"

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    def _get_resources(self, TagFilters: Any, ResourceTypeFilters: Any = ()) -> Any:
        """The tagging API: with what was deleted a moment ago (``deleted``)."""
        (tag_filter,) = TagFilters
        return {
            "ResourceTagMappingList": [
                {"ResourceARN": arn, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
                for arn, tags in [*self.tags.items(), *self.deleted.items()]
                if self.region in arn
                and (not ResourceTypeFilters or "inference-component" not in arn)
                and tag_filter["Key"] in tags
                and tags[tag_filter["Key"]] in tag_filter.get("Values", tags.values())
            ]
        }

    def _tag(self, arn: str, tags: list[dict[str, str]]) -> None:
        self.tags.setdefault(arn, {}).update({tag["Key"]: tag["Value"] for tag in tags})

    def _refuse_duplicate(self, existing: Any, kind: str, name: str) -> None:
        if name in existing:
            message = f'Cannot create already existing {kind} "{self._arn(kind, name)}".'
            raise service_error("ValidationException", message, "Create")

    def _find(self, existing: Any, kind: str, name: str) -> Any:
        if name not in existing:
            message = f'Could not find {kind} "{self._arn(kind, name)}".'
            raise service_error("ValidationException", message, "Describe")
        return existing[name]

    def _create_model(self, ModelName: str, Tags: Any, **parameters: Any) -> Any:
        self._refuse_duplicate(self.models, "model", ModelName)
        self.models[ModelName] = parameters | {"CreationTime": self._time()}
        self._tag(self._arn("model", ModelName), Tags)
        return {}

    def _describe_model(self, ModelName: str) -> Any:
        arn = self._arn("model", ModelName)
        model = self._find(self.models, "model", ModelName)
        return {"ModelName": ModelName, **model, "ModelArn": arn}

    def _delete_model(self, ModelName: str) -> Any:
        self._find(self.models, "model", ModelName)
        del self.models[ModelName], self.tags[self._arn("model", ModelName)]
        return {}

    def _create_endpoint_config(self, EndpointConfigName: str, Tags: Any, **parameters: Any) -> Any:
        self._refuse_duplicate(self.configs, "endpoint configuration", EndpointConfigName)
        for variant in parameters["ProductionVariants"]:
            if "ModelName" in variant:
                self._find(self.models, "model", variant["ModelName"])
        self.configs[EndpointConfigName] = parameters | {"CreationTime": self._time()}
        self._tag(self._arn("endpoint-config", EndpointConfigName), Tags)
        return {}

    def _describe_endpoint_config(self, EndpointConfigName: str) -> Any:
        config = self._find(self.configs, "endpoint configuration", EndpointConfigName)
        arn = self._arn("endpoint-config", EndpointConfigName)
        return {"EndpointConfigName": EndpointConfigName, **config, "EndpointConfigArn": arn}

    def _delete_endpoint_config(self, EndpointConfigName: str) -> Any:
        self._find(self.configs, "endpoint configuration", EndpointConfigName)
        for endpoint in self.endpoints.values():
            if EndpointConfigName in (endpoint.config, endpoint.next_config):
                raise service_error("ValidationException", "Cannot delete: an endpoint uses it.")
        del self.configs[EndpointConfigName]
        del self.tags[self._arn("endpoint-config", EndpointConfigName)]
        return {}

    def _script(self, busy: str) -> list[tuple[str, str | None]]:
        return (
            self.next_scripts.pop(0) if self.next_scripts else [(busy, None), ("InService", None)]
        )

    def _create_endpoint(self, EndpointName: str, EndpointConfigName: str, Tags: Any) -> Any:
        self._refuse_duplicate(self.endpoints, "endpoint", EndpointName)
        self._find(self.configs, "endpoint configuration", EndpointConfigName)
        arn = self._arn("endpoint", EndpointName)
        self._tag(arn, Tags)
        script = self._script("Creating")
        self.endpoints[EndpointName] = FakeEndpoint(
            EndpointConfigName, arn, script, changed=self.now, created=self.now
        )
        return {}

    def _update_endpoint(self, EndpointName: str, EndpointConfigName: str, **more: Any) -> Any:
        endpoint = self._find(self.endpoints, "endpoint", EndpointName)
        self._refuse_busy(endpoint)
        self.updates.append(more)
        if not more.get("RetainAllVariantProperties"):
            endpoint.count = None
        self._find(self.configs, "endpoint configuration", EndpointConfigName)
        endpoint.next_config = EndpointConfigName
        endpoint.script = self._script("Updating")
        endpoint.changed = self.now
        return {}

    def _refuse_busy(self, endpoint: FakeEndpoint) -> None:
        if endpoint.script[0][0] not in ("InService", "Failed", "UpdateRollbackFailed"):
            message = f'Cannot update in-progress endpoint "{endpoint.arn}".'
            raise service_error("ValidationException", message, "UpdateEndpoint")

    def _describe_endpoint(self, EndpointName: str) -> Any:
        endpoint = self._find(self.endpoints, "endpoint", EndpointName)
        status, reason = endpoint.script[0]
        if status == "InService" and endpoint.next_config:
            if reason is None:
                endpoint.config = endpoint.next_config
                endpoint.weights = {}
                endpoint.updates += 1
            endpoint.next_config = None
        if len(endpoint.script) > 1:
            endpoint.script.pop(0)
        elif status == "Deleting":
            del self.endpoints[EndpointName], self.tags[endpoint.arn]
        return {
            "EndpointName": EndpointName,
            "EndpointArn": endpoint.arn,
            "EndpointStatus": status,
            "EndpointConfigName": endpoint.config,
            "ProductionVariants": self._running(endpoint.config, endpoint.count, endpoint.weights),
            "CreationTime": datetime.fromtimestamp(endpoint.created, UTC),
            "LastModifiedTime": datetime.fromtimestamp(endpoint.changed, UTC),
            **({"FailureReason": reason} if reason else {}),
        }

    def _running(
        self, config: str, count: int | None = None, weights: Mapping[str, float] | None = None
    ) -> list[dict[str, Any]]:
        """The variants of a configuration, with all their instances running, or ``count``, and
        with the weights that they got since."""
        return [
            {
                "VariantName": variant["VariantName"],
                "CurrentInstanceCount": count or variant["InitialInstanceCount"],
                "DesiredWeight": (weights or {}).get(
                    variant["VariantName"], variant.get("InitialVariantWeight", 1.0)
                ),
                **{key: variant[key] for key in ("ManagedInstanceScaling",) if key in variant},
            }
            for variant in self.configs.get(config, {}).get("ProductionVariants", [])
            if "VariantName" in variant
        ]

    def _list_endpoints(self) -> Any:
        return {
            "Endpoints": [
                {"EndpointName": name, "EndpointStatus": endpoint.script[0][0]}
                for name, endpoint in self.endpoints.items()
            ]
        }

    def _delete_endpoint(self, EndpointName: str) -> Any:
        endpoint = self._find(self.endpoints, "endpoint", EndpointName)
        self._refuse_busy(endpoint)
        if EndpointName in self.components.by_name:
            raise service_error("ValidationException", "Cannot delete: it has components.")
        endpoint.script = [("Deleting", None)]
        return {}

    def _create_inference_component(self, Tags: Any, **parameters: Any) -> Any:
        endpoint = self._find(self.endpoints, "endpoint", parameters["EndpointName"])
        if endpoint.script[0][0] != "InService":
            raise service_error("ValidationException", "The endpoint is not in service.")
        self._find(self.models, "model", parameters["Specification"]["ModelName"])
        self.components.create(self.now, parameters)
        self._tag(self._arn("inference-component", parameters["InferenceComponentName"]), Tags)
        return {}

    def _update_inference_component(self, **parameters: Any) -> Any:
        self.components.rollouts.append(parameters.pop("DeploymentConfig", None))
        self._find(self.models, "model", parameters["Specification"]["ModelName"])
        self.components.update(self.now, parameters)
        return {}

    def _update_inference_component_runtime_config(
        self, InferenceComponentName: str, DesiredRuntimeConfig: dict[str, Any]
    ) -> Any:
        self.components.scale(self.now, InferenceComponentName, DesiredRuntimeConfig)
        return {}

    def _describe_inference_component(self, InferenceComponentName: str) -> Any:
        arn = self._arn("inference-component", InferenceComponentName)
        return self.components.describe(InferenceComponentName) | {"InferenceComponentArn": arn}

    def _delete_inference_component(self, InferenceComponentName: str) -> Any:
        self.components.delete(self.now, InferenceComponentName)
        self.tags.pop(self._arn("inference-component", InferenceComponentName), None)
        return {}

    def _list_tags(self, ResourceArn: str) -> Any:
        tags = self.tags.get(ResourceArn, {})
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    def _add_tags(self, ResourceArn: str, Tags: Any) -> Any:
        self._tag(ResourceArn, Tags)
        return {}

    # the engine

    def counters(self, variant: str = "AllTraffic") -> dict[str, Any]:
        """The counters of the engine that the call reaches."""
        return self.engines.get(variant, self.engine).counters()

    def _invoke_endpoint(self, EndpointName: str, Body: bytes, **more: Any) -> Any:
        endpoint = self._find(self.endpoints, "endpoint", EndpointName)
        self._require_component(endpoint, more)
        attributes = more.get("CustomAttributes")
        if attributes == "peagle=warm":
            return {"Body": io.BytesIO(self._warm(json.loads(Body)))}
        variant = more.get("TargetVariant", "AllTraffic")
        if attributes:
            document = self.counters(variant)
        else:
            document = self._answer(EndpointName, json.loads(Body), variant)
        return {"Body": io.BytesIO(json.dumps(document).encode())}

    def _require_component(self, endpoint: FakeEndpoint, parameters: dict[str, Any]) -> None:
        variants = self.configs.get(endpoint.config, {}).get("ProductionVariants", [])
        hosts = any("ManagedInstanceScaling" in variant for variant in variants)
        if hosts and "InferenceComponentName" not in parameters:
            text = "Inference Component Name header is required for endpoints to which you plan to"
            raise service_error("ValidationError", f"{text} deploy inference components.")
        if hosts and not self.components.copies_on(parameters["InferenceComponentName"]):
            text = "Inference Component has no capacity to process this request."
            text += " ApplicationAutoScaling may be in-progress (if configured)"
            raise service_error("ValidationError", text)

    def _answer(self, name: str, body: dict[str, Any], variant: str) -> dict[str, Any]:
        """The answer of one of the engines in ``streams``, in turn, which logs its statistics;
        without any, ``engine`` is every instance's."""
        endpoint = self.endpoints[name]
        running = {
            container["VariantName"]: container["CurrentInstanceCount"]
            for container in self._running(endpoint.config)
        }
        copies = self.components.copies_on(name)
        updates = endpoint.updates + self.components.updates
        first = 100 * updates + 1  # an update starts other engines
        every = {
            f"{variant}/i-{first + number}": self.engines.get(variant, self.engine)
            for number in range(copies or running.get(variant, 0))
        }
        streams = self.streams or every
        stream = list(streams)[self._turn % len(streams)]
        self._turn += 1
        engine = streams[stream]
        for line in engine.statistics():
            self.write_log(line, stream)
        return engine.answer(body)

    def _warm(self, body: dict[str, Any]) -> bytes:
        """The container's reply, inside SageMaker's error if it is one."""
        answer = self.packed.answer(body)
        if answer.status != 200:
            raise service_error(
                "ModelError", f"Received client error ({answer.status})", "InvokeEndpoint",
                OriginalStatusCode=answer.status, OriginalMessage=answer.body.decode(),
            )  # fmt: skip
        return answer.body

    def _invoke_endpoint_with_response_stream(
        self, EndpointName: str, Body: bytes, **more: Any
    ) -> Any:
        self._require_component(self.endpoints[EndpointName], more)
        self.engine.answer(json.loads(Body))
        texts = [
            json.dumps({"choices": [{"delta": {"content": word}}]}) for word in self.engine.tokens
        ]
        usage = json.dumps({"choices": [], "usage": {"completion_tokens": len(texts)}})
        stream = "".join(f"data: {text}\n\n" for text in (*texts, usage, "[DONE]")).encode()
        cut = len(stream) // 2 + 3
        return {"Body": [{"PayloadPart": {"Bytes": part}} for part in (stream[:cut], stream[cut:])]}

    # S3

    def _bucket(self, name: str) -> dict[str, dict[str, Any]]:
        if name not in self.buckets:
            raise service_error("NoSuchBucket", "The specified bucket does not exist")
        return self.buckets[name]

    def _head_bucket(self, Bucket: str, **_: Any) -> Any:
        if Bucket not in self.buckets:
            raise service_error("404", "Not Found", "HeadBucket")
        return {"BucketRegion": "us-east-1"}

    def _create_bucket(self, Bucket: str, **_: Any) -> Any:
        self.buckets.setdefault(Bucket, {})
        return {}

    def _put_bucket_tagging(self, Bucket: str, Tagging: Any) -> Any:
        self.bucket_tags[Bucket] = Tagging["TagSet"]
        return {}

    def _get_bucket_tagging(self, Bucket: str) -> Any:
        if Bucket not in self.bucket_tags:
            raise service_error("NoSuchTagSet", "The TagSet does not exist")
        return {"TagSet": self.bucket_tags[Bucket]}

    def _get_bucket_lifecycle_configuration(self, Bucket: str) -> Any:
        if Bucket not in self.lifecycles:
            raise service_error("NoSuchLifecycleConfiguration", "The lifecycle does not exist")
        return {"Rules": self.lifecycles[Bucket]}

    def _put_bucket_lifecycle_configuration(
        self, Bucket: str, LifecycleConfiguration: Any, **more: Any
    ) -> Any:
        self.lifecycles[Bucket] = LifecycleConfiguration["Rules"]
        return {}

    def _delete_bucket_lifecycle(self, Bucket: str) -> Any:
        self.lifecycles.pop(Bucket, None)
        return {}

    def _get_topic_attributes(self, TopicArn: str) -> Any:
        if TopicArn not in self.topics:
            raise service_error("NotFound", "Topic does not exist")
        return {"Attributes": self.topics[TopicArn]}

    def _delete_bucket(self, Bucket: str) -> Any:
        if self._bucket(Bucket):
            raise service_error("BucketNotEmpty", "The bucket you tried to delete is not empty")
        del self.buckets[Bucket]
        return {}

    def _batch_get_image(self, registryId: str, imageIds: list[dict[str, str]], **_: Any) -> Any:
        """``digests`` by tag; like ECR, no error for an unknown tag or digest. The registries of
        other accounts have every image; its digest is not told unless it is known."""
        (requested,) = imageIds
        images = [
            {"imageId": {"imageTag": tag, "imageDigest": digest}}
            for tag, digest in self.digests.items()
            if requested in ({"imageTag": tag}, {"imageDigest": digest})
        ]
        listed = images or ([{"imageId": requested}] if registryId != ACCOUNT else [])
        return {"images": listed, "failures": [] if listed else [{"failureCode": "ImageNotFound"}]}

    def _list_objects_v2(self, Bucket: str, Prefix: str) -> Any:
        there = self._bucket(Bucket).items()
        return {
            "Contents": [
                {"Key": key, "Size": entry.get("ContentLength", 0)}
                for key, entry in there
                if key.startswith(Prefix)
            ]
        }

    def _get_object(self, Bucket: str, Key: str) -> Any:
        entry = self._bucket(Bucket).get(Key)
        if entry is None:
            raise service_error("NoSuchKey", "The specified key does not exist.", "GetObject")
        return {"Body": io.BytesIO(entry["Content"])}

    def _create_multipart_upload(self, Bucket: str, Key: str, **_: Any) -> Any:
        self._bucket(Bucket)
        return {"UploadId": "1"}

    def _abort_multipart_upload(self, Bucket: str, Key: str, UploadId: str) -> Any:
        return {}

    def put(self, bucket: str, key: str, content: bytes = b"x") -> None:
        """Store an object, as another client does."""
        there = self.buckets.setdefault(bucket, {})
        there[key] = {"ContentLength": len(content), "Metadata": {}, "Content": content}

    def _head_object(self, Bucket: str, Key: str) -> Any:
        entry = self._bucket(Bucket).get(Key)
        if entry is None:
            raise service_error("404", "Not Found", "HeadObject")
        return entry

    def _upload_file(
        self, path: str, bucket: str, key: str, ExtraArgs: Any, Callback: Callable[[int], object]
    ) -> None:
        with open(path, "rb") as stream:
            content = stream.read()
        self._bucket(bucket)[key] = {
            "ContentLength": len(content), "Content": content, **ExtraArgs,
        }  # fmt: skip
        Callback(len(content))

    def _list_multipart_uploads(self, Bucket: str) -> Any:
        self._bucket(Bucket)
        return {}

    def _delete_object(self, Bucket: str, Key: str) -> Any:
        self._bucket(Bucket).pop(Key, None)
        return {}

    def _delete_objects(self, Bucket: str, Delete: Any) -> Any:
        for entry in Delete["Objects"]:
            self._bucket(Bucket).pop(entry["Key"], None)
        return {}


class _Client:
    """A boto3 client of one service."""

    def __init__(self, cloud: Cloud, service: str, region: str) -> None:
        self._cloud, self._region = cloud, region
        self.meta = SimpleNamespace(endpoint_url=f"https://{service}.us-east-1.amazonaws.com")

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda **parameters: self._cloud.call(operation, **parameters)

    def upload_file(self, path: str, bucket: str, key: str, **more: Any) -> None:
        self._cloud.calls.append("upload_file")
        self._cloud.before("upload_file")
        self._cloud._upload_file(path, bucket, key, **more)
        self._cloud.after("upload_file")

    def copy(self, source: dict[str, str], bucket: str, key: str, ExtraArgs: Any) -> None:
        self._cloud.calls.append("copy")
        self._cloud.before("copy")
        there = self._cloud.buckets
        there[bucket][key] = there[source["Bucket"]][source["Key"]] | {
            "Metadata": ExtraArgs["Metadata"]
        }
        self._cloud.after("copy")

    def get_paginator(self, operation: str) -> Any:
        return SimpleNamespace(paginate=partial(self._pages, operation))

    def _pages(self, operation: str, **parameters: Any) -> Iterator[Any]:
        self._cloud.region = self._region
        yield self._cloud.call(operation, **parameters)


class FakeAws(Aws):
    """A connection to a Cloud instead of AWS."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(None, "us-east-1")
        self.cloud = cloud

    def in_region(self, region: str) -> Aws:
        other = FakeAws(self.cloud)
        other.region = region
        return other

    def client(self, service: str) -> Any:
        return _Client(self.cloud, service, self.region)
