"""A fake AWS account in memory: fast, scriptable, and interruptible before or after any call.

SageMaker, scaling and the scheduler are the sandbox's own; IAM, CloudWatch, log groups and objects
are moto's, which takes a millisecond per call. What is asked most often (events of a log, quotas,
a VPC, images) is in this file.
"""

from __future__ import annotations

import copyreg
import functools
import io
import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import botocore.session
from botocore import xform_name
from moto.applicationautoscaling.models import applicationautoscaling_backends
from moto.cloudwatch.models import cloudwatch_backends
from moto.core.botocore_stubber import BotocoreStubber
from moto.core.exceptions import ServiceException
from moto.iam.models import iam_backends
from moto.logs.models import logs_backends
from moto.sagemaker.models import sagemaker_backends
from moto.scheduler.models import scheduler_backends

from peagle.aws.client import Aws
from peagle.render.resources import DIMENSION
from peagle.sandbox import invocations, observability, scaling
from peagle.sandbox.client import ACCOUNT as ACCOUNT
from peagle.sandbox.requests import Refused
from tests.packed import Packed
from tests.unit.aws.network import Network
from tests.unit.aws.network import service_error as service_error
from tests.unit.aws.scripted import (
    REGION,
    ScriptedComponent,
    ScriptedEndpoint,
    ScriptedSageMaker,
    State,
)

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


def foreign_alarm(endpoint: str) -> dict[str, Any]:
    """What PutMetricAlarm gets for another user's alarm of an endpoint."""
    return {
        "Dimensions": [{"Name": "EndpointName", "Value": endpoint}], "MetricName": "Errors",
        "Namespace": "theirs", "Period": 60, "EvaluationPeriods": 1, "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanThreshold", "Statistic": "Average",
    }  # fmt: skip


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


_SESSION = botocore.session.Session()
_SESSION.set_credentials("testing", "testing")
_SESSION.set_config_variable("region", REGION)
_MOTO = BotocoreStubber()
_MOTO.enabled = True
_SESSION.register("before-send", _MOTO)
observability.install()
_BACKENDS: dict[str, Any] = {
    "aws:iam": iam_backends,
    f"{REGION}:application-autoscaling": applicationautoscaling_backends,
    f"{REGION}:cloudwatch": cloudwatch_backends,
    f"{REGION}:logs": logs_backends,
    f"{REGION}:scheduler": scheduler_backends,
}
"""Region and service -> moto's backends."""
_CHECKS = {xform_name(target.rpartition(".")[2]): o for target, o in scaling.OPERATIONS.items()}
copyreg.pickle(type(threading.Lock()), lambda _: (threading.Lock, ()))  # of a fleet that is copied


@functools.cache
def _moto_operations() -> dict[str, Callable[..., Any]]:
    """As boto3 names them."""
    names = [place.partition(":")[2] for place in _BACKENDS]
    clients = [_SESSION.create_client(name) for name in names]
    return {
        name: getattr(client, name)
        for client in clients
        for name in client.meta.method_to_api_mapping
    }


class Cloud:
    """The state of the account, and hooks around every call."""

    _installed: Cloud | None = None
    """The one whose state moto's backends have."""

    def __init__(self) -> None:
        self.now = START
        self.sagemaker = ScriptedSageMaker(self.read_clock)
        self.backends = {
            service: every.backend(region, ACCOUNT)
            for place, every in _BACKENDS.items()
            for region, _, service in [place.partition(":")]
        }
        self.rollouts: list[dict[str, Any] | None] = []
        self.tags: dict[str, dict[str, str]] = {}
        self.region = REGION
        self.deleted: dict[str, dict[str, str]] = {}
        self.buckets: dict[str, dict[str, dict[str, Any]]] = {}
        self.lifecycles: dict[str, list[dict[str, Any]]] = {}
        self.topics: dict[str, dict[str, str]] = {}
        self.bucket_tags: dict[str, list[dict[str, str]]] = {}
        self.caller_arn = f"arn:aws:iam::{ACCOUNT}:user/someone"
        self.network = Network()
        self.quotas: dict[str, float] = {"ml.g5.xlarge for endpoint usage": 4}
        self.quota_codes: dict[str, str] = {}
        self.log: list[dict[str, Any]] = []
        self.metrics: dict[tuple[str, str], float] = {}
        self.metric_time: float | None = None
        self.updates: list[dict[str, Any]] = []
        self.role_delay = 0.0
        self._roles_created: dict[str, float] = {}
        self.engine = Engine()
        self.streams: dict[str, Engine] = {}
        self.engines: dict[str, Engine] = {}
        self._turn = 0
        self._one_at_a_time = threading.Lock()
        self.packed = Packed()
        self.price: float | None = None
        self.digests: dict[str, str] = {"0.28.0": f"sha256:{28:064}"}
        self.not_allowed: set[str] = set()
        self.calls: list[str] = []
        self.before: Hook = lambda operation: None
        self.after: Hook = lambda operation: None
        self.add_role("peagle-execution")

    def read_clock(self) -> float:
        return self.now

    def call(self, operation: str, **parameters: Any) -> Any:
        """One call of a client: with the hooks before and after it."""
        self.calls.append(operation)
        self.before(operation)
        try:
            return self.answer(operation, parameters)
        finally:
            self.after(operation)

    def answer(self, operation: str, parameters: dict[str, Any]) -> Any:
        """What AWS does and answers: by a method of this class, by the sandbox, or by moto."""
        self._install()
        if method := getattr(self, f"_{operation}", None):
            return method(**parameters)
        return self._pass_on(operation, parameters)

    def _pass_on(self, operation: str, parameters: dict[str, Any]) -> Any:
        self._install()
        try:
            if self.sagemaker.has(operation):
                answer = self.sagemaker.call(operation, parameters) or {}
                self._keep_tags(parameters)
                return answer
            document = _CHECKS[operation](REGION, parameters) if operation in _CHECKS else None
        except ServiceException as error:
            raise service_error(error.code, error.message, operation) from error
        return document or _moto_operations()[operation](**parameters)

    def _install(self) -> None:
        """Let moto and the sandbox work on this account."""
        if Cloud._installed is self and sagemaker_backends[ACCOUNT][REGION] is self.sagemaker:
            return
        sagemaker_backends[ACCOUNT][REGION] = self.sagemaker
        for place, every in _BACKENDS.items():
            region, _, service = place.partition(":")
            every[ACCOUNT][region] = self.backends[service]
        Cloud._installed = self

    @property
    def is_empty(self) -> bool:
        """Whether no resource is left that costs money or occupies a name."""
        return not any((self.models, self.configs, self.endpoints, self.buckets, self.schedules))

    # What the sandbox and moto keep

    @property
    def models(self) -> dict[str, Any]:
        return {name: model.parameters for name, model in self.sagemaker._models.items()}

    @property
    def configs(self) -> dict[str, Any]:
        return {name: made.parameters for name, made in self.sagemaker.endpoint_configs.items()}

    @property
    def endpoints(self) -> dict[str, ScriptedEndpoint]:
        return cast("dict[str, ScriptedEndpoint]", self.sagemaker.endpoints)

    @property
    def components(self) -> dict[str, ScriptedComponent]:
        return cast("dict[str, ScriptedComponent]", self.sagemaker.components)

    @property
    def next_scripts(self) -> list[list[State]]:
        """The states that the next changes of endpoints go through."""
        return self.sagemaker.scripts

    @next_scripts.setter
    def next_scripts(self, scripts: list[list[State]]) -> None:
        self.sagemaker.scripts = scripts

    def scale_copies(self, name: str, count: int) -> None:
        """As Application Auto Scaling, or another user, does it; done at once."""
        runtime = {"CopyCount": count}
        self.sagemaker.update_component({"InferenceComponentName": name, "RuntimeConfig": runtime})
        component = self.components[name]
        component.script = [("InService", None)]
        component.settle()

    @property
    def made_alarms(self) -> dict[str, dict[str, Any]]:
        """Name -> what PutMetricAlarm was asked for."""
        alarms = self._pass_on("describe_alarms", {})["MetricAlarms"]
        return {
            alarm["AlarmName"]: {
                key: value for key, value in alarm.items()
                if not key.startswith(("State", "AlarmArn", "AlarmConf", "AlarmName"))
            }
            for alarm in alarms
        }  # fmt: skip

    def put_alarm(self, name: str, **changes: Any) -> None:
        """As another user's change, or alarm."""
        before = self.made_alarms.get(name, {})
        self._pass_on("put_metric_alarm", {"AlarmName": name, **before, **changes})

    @property
    def dashboards(self) -> dict[str, str]:
        return {name: made.body for name, made in self.backends["cloudwatch"].dashboards.items()}

    @property
    def metric_filters(self) -> dict[str, Any]:
        filters = self.backends["logs"].filters.metric_filters
        return {made["filterName"]: made for made in filters}

    @property
    def log_groups(self) -> set[str]:
        return set(self.backends["logs"].groups)

    @log_groups.setter
    def log_groups(self, names: set[str]) -> None:
        for name in names - self.log_groups:
            self.backends["logs"].create_log_group(name, {})

    @property
    def retention(self) -> dict[str, int]:
        groups = self.backends["logs"].groups.items()
        return {name: int(g.retention_in_days) for name, g in groups if g.retention_in_days}

    @property
    def scaled(self) -> set[str]:
        """The resources that are scalable targets."""
        return set(self.bounds)

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        every = self.backends["application-autoscaling"].targets.values()
        return {
            name: (target.min_capacity, target.max_capacity)
            for targets in every
            for name, target in targets.items()
        }

    def add_scalable_target(self, resource: str, most: int = 2) -> None:
        """As another user's, which may be of what does not exist here."""
        self.backends["application-autoscaling"].register_scalable_target(
            "sagemaker", resource, DIMENSION, 1, most, "", None
        )

    def _policies(self, kind: str) -> dict[str, Any]:
        every = self.backends["application-autoscaling"].policies.values()
        return {policy.resource_id: policy for policy in every if policy.policy_type == kind}

    @property
    def policies(self) -> dict[str, Any]:
        """Resource -> its policy that follows a metric."""
        return self._policies("TargetTrackingScaling")

    @property
    def wake_up_policies(self) -> dict[str, Any]:
        return self._policies("StepScaling")

    @property
    def schedules(self) -> dict[str, Any]:
        schedules: dict[str, Any] = self.backends["scheduler"].schedule_groups["default"].schedules
        return schedules

    def fire_schedules(self) -> None:
        """What the scheduler does at the end time; what it deletes is gone at once."""
        self._install()
        scaling.fire_due(self.now)
        for resource in [*self.components.values(), *self.endpoints.values()]:
            if resource.status == "Deleting":
                resource.advance()
        self._keep_tags({})

    @property
    def roles(self) -> dict[str, Any]:
        """moto's roles by their id."""
        roles: dict[str, Any] = self.backends["iam"].roles
        return roles

    @property
    def schedule_roles(self) -> set[str]:
        """The roles that calls created."""
        return {role.name for role in self.roles.values()} & {*self._roles_created}

    def add_role(self, name: str, trusts: Any = TRUSTS_SAGEMAKER) -> Any:
        """A role of another user."""
        policy = json.dumps(trusts)
        return self.backends["iam"].create_role(name, policy, "/", None, "", [], "3600")

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

    def _create_role(self, RoleName: str, **parameters: Any) -> Any:
        answer = self._pass_on("create_role", {"RoleName": RoleName, **parameters})
        self._roles_created[RoleName] = self.now
        return answer

    def _create_schedule(self, Target: Any, **parameters: Any) -> Any:
        """A new role can be assumed after ``role_delay`` seconds only."""
        made = self._roles_created.get(Target["RoleArn"].rpartition("/")[2], -math.inf)
        if self.now < made + self.role_delay:
            raise service_error("ValidationException", "The execution role you provide must allow "
                                "AWS EventBridge Scheduler to assume the role.")  # fmt: skip
        return self._pass_on("create_schedule", {"Target": Target, **parameters})

    def _simulate_principal_policy(
        self, PolicySourceArn: str, ActionNames: list[str], **_: Any
    ) -> Any:
        """``not_allowed``: the actions that the policies of every role lack."""
        self._pass_on("get_role", {"RoleName": PolicySourceArn.rpartition("/")[2]})
        decision = {False: "allowed", True: "implicitDeny"}
        return {
            "EvaluationResults": [
                {"EvalActionName": action, "EvalDecision": decision[action in self.not_allowed]}
                for action in ActionNames
            ]
        }

    def _describe_alarms(self, **parameters: Any) -> Any:
        made = self.backends["cloudwatch"].alarms  # most tests have none, and ask often
        return self._pass_on("describe_alarms", parameters) if made else {"MetricAlarms": []}

    def _describe_scalable_targets(self, **parameters: Any) -> Any:
        made = self.bounds
        operation = "describe_scalable_targets"
        return self._pass_on(operation, parameters) if made else {"ScalableTargets": []}

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
        logStreamNamePrefix: str = "",
        filterPattern: str = "",
    ) -> Any:
        """Every event: what is asked for by a pattern is a part of them."""
        if not self.log:
            raise service_error(
                "ResourceNotFoundException", "The specified log group does not exist."
            )
        last = min(endTime or math.inf, self.now * 1000)
        return {
            "events": [
                event
                for event in self.log
                if startTime <= event["timestamp"] <= last
                and (logStreamNames is None or event["logStreamName"] in logStreamNames)
                and event["logStreamName"].startswith(logStreamNamePrefix)
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

    # SageMaker

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

    def _keep_tags(self, parameters: dict[str, Any]) -> None:
        """The tags of what exists."""
        every: tuple[dict[str, Any], ...] = (
            self.sagemaker._models, self.sagemaker.endpoint_configs, self.endpoints,
            self.components,
        )  # fmt: skip
        resources = [resource for made in every for resource in made.values()]
        self.tags = {
            resource.arn: self.tags.get(resource.arn)
            or {tag["Key"]: tag["Value"] for tag in parameters.get("Tags", ())}
            for resource in resources
        }

    def _list_tags(self, ResourceArn: str) -> Any:
        tags = self.tags.get(ResourceArn, {})
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    def _add_tags(self, ResourceArn: str, Tags: Any) -> Any:
        added = {tag["Key"]: tag["Value"] for tag in Tags}
        self.tags[ResourceArn] = self.tags.get(ResourceArn, {}) | added
        return {}

    def _update_endpoint(self, **parameters: Any) -> Any:
        answer = self._pass_on("update_endpoint", parameters)
        self.updates.append(parameters)
        return answer

    def _update_inference_component(self, **parameters: Any) -> Any:
        self.rollouts.append(parameters.get("DeploymentConfig"))
        return self._pass_on("update_inference_component", parameters)

    # the engine

    def _choose(self, name: str, parameters: dict[str, Any]) -> tuple[str, Engine]:
        """The stream and the engine of the instance that the sandbox chooses for an invocation."""
        sent = {"x-amzn-sagemaker-target-variant": parameters.get("TargetVariant")}
        headers = {header: value for header, value in sent.items() if value}
        component = parameters.get("InferenceComponentName")
        invocation = invocations.Invocation(REGION, name, component, headers, b"")
        try:
            instance = invocations.choose(invocation)
        except Refused as error:
            raise service_error(error.code, str(error), "InvokeEndpoint") from error
        endpoint, variant = self.endpoints[name], instance.spec.variant
        serving = self.components[component] if component else endpoint
        assert serving.current is not None
        place = [each for each in serving.current.instances if each.spec.variant == variant]
        number = 100 * serving.updates + place.index(instance) + 1  # an update starts other engines
        return f"{variant}/i-{number}", self.engines.get(variant, self.engine)

    def _invoke_endpoint(self, EndpointName: str, Body: bytes, **more: Any) -> Any:
        stream, engine = self._choose(EndpointName, more)
        attributes = more.get("CustomAttributes")
        if attributes == "peagle=warm":
            return {"Body": io.BytesIO(self._warm(json.loads(Body)))}
        if attributes:
            document = engine.counters()
        else:
            with self._one_at_a_time:
                document = self._answer(stream, engine, json.loads(Body))
        return {"Body": io.BytesIO(json.dumps(document).encode())}

    def _answer(self, stream: str, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's answer, or that of one of ``streams``, in turn; it logs its statistics."""
        if self.streams:
            stream = list(self.streams)[self._turn % len(self.streams)]
            engine = self.streams[stream]
        self._turn += 1
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
        self._choose(EndpointName, more)
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
        other accounts have every image; its digest is not reported unless it is known."""
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

    def _head_object(self, Bucket: str, Key: str, IfMatch: str = "") -> Any:
        entry = self._bucket(Bucket).get(Key)
        if entry is None:
            raise service_error("404", "Not Found", "HeadObject")
        return {"ETag": '"etag"'} | entry

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

    def copy(
        self,
        source: dict[str, str],
        bucket: str,
        key: str,
        settings: dict[str, Any],
        progress: Callable[[int], object],
        Config: Any,
    ) -> None:
        self._cloud.calls.append("copy")
        self._cloud.before("copy")
        there = self._cloud.buckets
        there[bucket][key] = there[source["Bucket"]][source["Key"]] | {
            "Metadata": settings["Metadata"]
        }
        progress(there[bucket][key]["ContentLength"])
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
