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
from peagle.render.files import RenderedFile
from peagle.render.kubernetes import FILES as FILES
from peagle.render.kubernetes import (
    PROMETHEUS,
    object_name,
    refused,
    release_files,
    resources,
    served_names,
    start_seconds,
    startup_probe,
    variables,
)
from peagle.s3uri import S3Uri
from peagle_serve.contract import DEFAULT_PORT, MODEL_FOLDER

API_VERSION, KIND = "inference.sagemaker.aws.amazon.com/v1", "InferenceEndpointConfig"


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    name = object_name(plan.name)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": _spec(plan, catalog),
    }
    parts = ("hyperpod", "hyperpod-scaling") if plan.scaling else ("hyperpod",)
    return release_files(plan, catalog, "hyperpod", document, {"app": name}, DEFAULT_PORT, parts)


def unsupported(plan: Plan) -> str:
    """What belongs to SageMaker's endpoints or to the cluster, and a second prefix of weights."""
    capture = plan.observe.capture if plan.observe else None
    if any(mount.channel is not None for mount in plan.mounts):
        return "it mounts one S3 prefix, and target and head are below two"
    if capture and capture.retention_days is not None:
        return "it makes no rule of the bucket, which capture_retention needs (0 makes none)"
    return refused(plan)


def _spec(plan: Plan, catalog: Catalog) -> dict[str, Any]:
    """What the ``InferenceEndpointConfig`` asks for."""
    spec = {
        "modelName": plan.name,
        "endpointName": plan.name,
        "instanceType": plan.instance_type,
        "replicas": plan.engines,
        "invocationEndpoint": "invocations",
        "maxDeployTimeInSeconds": start_seconds(plan),
        "modelSourceConfig": _source(plan),
        "worker": {
            "image": plan.runtime.image,
            "args": ["serve"],  # as SageMaker starts a container
            "modelInvocationPort": {"containerPort": DEFAULT_PORT, "name": "http"},
            "modelVolumeMount": {"name": "model-weights", "mountPath": MODEL_FOLDER},
            "environmentVariables": variables(plan, plan.environment),
            "resources": resources(plan, catalog),
            "probes": {"startupProbe": startup_probe(plan, "/ping", DEFAULT_PORT)},
        },
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
    }
    if plan.company.tags:
        tags = plan.company.tag_list
        spec["tags"] = [{"name": tag["Key"], "value": tag["Value"]} for tag in tags]
    if capture := plan.observe.capture if plan.observe else None:
        spec["dataCapture"] = {
            "s3Uri": capture.s3_uri,
            "sagemakerEndpoint": {  # as SageMaker's
                "enabled": True,
                "initialSamplingPercentage": capture.percent,
                **({"kmsKeyId": capture.kms_key} if capture.kms_key else {}),
                "captureOptions": [{"captureMode": "Input"}, {"captureMode": "Output"}],
                "captureContentTypeHeader": {"jsonContentTypes": ["application/json"]},
            },
        }
    if scaling := plan.scaling:
        # By requests at a time per pod, those that wait in its engine included. PromQL's strings
        # have JSON's escapes.
        served = f"{{model_name={json.dumps(served_names(plan)[0])}}}"
        gauges = (f"sum(vllm:num_requests_{gauge}{served})" for gauge in ("running", "waiting"))
        spec["autoScalingSpec"] = {
            "minReplicaCount": scaling.minimum,
            "maxReplicaCount": scaling.maximum,
            "scaleDownStabilizationTime": scaling.scale_in_cooldown_seconds,
            "scaleUpStabilizationTime": scaling.scale_out_cooldown_seconds,
            "prometheusTrigger": {
                "name": "requests-per-pod",
                "serverAddress": PROMETHEUS,
                "query": " + ".join(gauges),
                "targetValue": scaling.target_concurrency,
                "metricType": "Average",
            },
        }
    return spec


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
    if weights.revision and re.fullmatch(r"[0-9a-f]{40}", weights.revision):
        model["commitSHA"] = weights.revision
    return {
        "modelSourceType": "huggingface",
        "prefetchEnabled": False,
        "huggingFaceModel": model,
    }
