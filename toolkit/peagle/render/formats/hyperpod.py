"""The plan for SageMaker HyperPod's inference operator: an ``InferenceEndpointConfig``.

The operator keeps the contract of SageMaker's containers (``/ping``, ``/invocations`` on 8080, the
model at ``/opt/ml/model``), so the container gets the same environment as on an endpoint, which the
operator registers too.
"""

from __future__ import annotations

import json
import re
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, readme
from peagle.render.kubernetes import FILES as FILES
from peagle.render.kubernetes import (
    HUB_TOKEN,
    MANIFEST,
    PROMETHEUS,
    applying,
    gate_file,
    has_hub_weights,
    heading,
    manifest_file,
    object_name,
    refused,
    resources,
    served_names,
    start_seconds,
    startup_probe,
    variables,
)
from peagle.s3uri import S3Uri
from peagle_serve.contract import DEFAULT_PORT, MODEL_FOLDER

API_VERSION = "inference.sagemaker.aws.amazon.com/v1"
KIND = "InferenceEndpointConfig"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    name = object_name(plan.name)
    parts = ("hyperpod", "hyperpod-scaling") if plan.scaling else ("hyperpod",)
    return (
        manifest_file(MANIFEST, [endpoint(plan, catalog)], heading(plan, "hyperpod")),
        gate_file(plan, "hyperpod", name, {"app": name}, DEFAULT_PORT),
        readme(
            plan,
            catalog,
            *parts,
            **applying(plan, name, prometheus=plan.scaling is not None),
        ),
    )


def unsupported(plan: Plan) -> str:
    """What belongs to SageMaker's endpoints or to the cluster, and a second prefix of weights."""
    capture = plan.observe.capture if plan.observe else None
    if any(mount.channel is not None for mount in plan.mounts):
        return "it mounts one S3 prefix, and target and head are below two"
    if capture and capture.retention_days is not None:
        return "it makes no rule of the bucket, which capture_retention needs (0 makes none)"
    return refused(plan)


def endpoint(plan: Plan, catalog: Catalog) -> dict[str, Any]:
    """The ``InferenceEndpointConfig``."""
    parts = {
        "tags": [{"name": tag["Key"], "value": tag["Value"]} for tag in plan.company.tag_list],
        "dataCapture": _capture(plan),
        "autoScalingSpec": _scaling(plan),
    }
    spec = {
        "modelName": plan.name,
        "endpointName": plan.name,
        "instanceType": plan.instance_type,
        "replicas": plan.engines,
        "invocationEndpoint": "invocations",
        "maxDeployTimeInSeconds": start_seconds(plan),
        "modelSourceConfig": _source(plan),
        "worker": _worker(plan, catalog),
        "loadBalancer": {
            "healthCheckPath": "/ping",
            "routingAlgorithm": "least_outstanding_requests",
        },
        "metrics": {
            "enabled": True,
            "modelMetrics": {"path": "/metrics", "port": DEFAULT_PORT},
        },
        # The operator would add a cache in host memory, which the plan does not have.
        "kvCacheSpec": {"enableL1Cache": False, "enableL2Cache": False},
        **{key: part for key, part in parts.items() if part},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": object_name(plan.name)},
        "spec": spec,
    }


def _source(plan: Plan) -> dict[str, Any]:
    """Where the operator takes weights from: the prefix with target and head, or the Hub, from
    which the engine downloads by itself, as it does on an endpoint."""
    if plan.mounts:
        (mount,) = plan.mounts
        uri = S3Uri.parse(mount.s3_uri)
        return {
            "modelSourceType": "s3",
            "modelLocation": uri.key.rstrip("/"),
            "prefetchEnabled": True,
            "s3Storage": {"bucketName": uri.bucket, "region": plan.region},
        }
    weights = plan.target.weights
    model = {"modelId": weights.location}
    if weights.revision and _COMMIT.fullmatch(weights.revision):
        model["commitSHA"] = weights.revision
    return {
        "modelSourceType": "huggingface",
        "prefetchEnabled": False,
        "huggingFaceModel": model,
    }


def _worker(plan: Plan, catalog: Catalog) -> dict[str, Any]:
    hub = [HUB_TOKEN] if has_hub_weights(plan) else []
    return {
        "image": plan.runtime.image,
        "args": ["serve"],  # as SageMaker starts a container
        "modelInvocationPort": {"containerPort": DEFAULT_PORT, "name": "http"},
        "modelVolumeMount": {"name": "model-weights", "mountPath": MODEL_FOLDER},
        "environmentVariables": [*variables(plan.environment), *hub],
        "resources": resources(plan, catalog),
        "probes": {"startupProbe": startup_probe(plan, "/ping", DEFAULT_PORT)},
    }


def _capture(plan: Plan) -> dict[str, Any]:
    """Data capture at the endpoint, as SageMaker's; empty without."""
    capture = plan.observe.capture if plan.observe else None
    if capture is None:
        return {}
    key = {"kmsKeyId": capture.kms_key} if capture.kms_key else {}
    return {
        "s3Uri": capture.s3_uri,
        "sagemakerEndpoint": {
            "enabled": True,
            "initialSamplingPercentage": capture.percent,
            **key,
            "captureOptions": [{"captureMode": "Input"}, {"captureMode": "Output"}],
            "captureContentTypeHeader": {"jsonContentTypes": ["application/json"]},
        },
    }


def _scaling(plan: Plan) -> dict[str, Any]:
    """Scaling by requests at a time per pod, those that wait in its engine included."""
    scaling = plan.scaling
    if scaling is None:
        return {}
    # PromQL's strings have JSON's escapes.
    served = f"{{model_name={json.dumps(served_names(plan)[0])}}}"
    gauges = ("running", "waiting")
    return {
        "minReplicaCount": scaling.minimum,
        "maxReplicaCount": scaling.maximum,
        "scaleDownStabilizationTime": scaling.scale_in_cooldown_seconds,
        "scaleUpStabilizationTime": scaling.scale_out_cooldown_seconds,
        "prometheusTrigger": {
            "name": "requests-per-pod",
            "serverAddress": PROMETHEUS,
            "query": " + ".join(f"sum(vllm:num_requests_{gauge}{served})" for gauge in gauges),
            "targetValue": scaling.target_concurrency,
            "metricType": "Average",
        },
    }
