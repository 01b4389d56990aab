"""What the formats for Kubernetes share: manifests, quoting, a pod's container, and the gate.

The gate is a Job that checks the head and then proves every pod, through a headless Service. It
reads the plan, with prompts and floor, from a ConfigMap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.checkpoints.entries import OWN
from peagle.planning.operation import reserved
from peagle.planning.plan import MODEL_BUCKET, Plan, Weights
from peagle.render.files import PLAN, RenderedFile, readme, template, text_file, yaml_text
from peagle.render.formats import only_sagemaker
from peagle.render.requests import folders, pair_arguments
from peagle_serve.contract import SERVED_NAME
from peagle_serve.environment import make_tokens

MANIFEST, GATE = "inference.yaml", "gate.yaml"
FILES = (MANIFEST, GATE, "README.md")

PROMETHEUS = "${PrometheusUrl}"
"""Placeholder for the server with the metrics of the pods, which scaling reads."""

_TOOLKIT_IMAGE = "${ToolkitImage}"
"""Placeholder for an image in which ``peagle`` is installed."""

_HUB_TOKEN = {
    "name": "HF_TOKEN",
    "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}},
}

_PROBE_SECONDS = 10
_PROOF_SECONDS = 1800
_LOOK_SECONDS = 10
"""Between two looks at the Job. ``kubectl wait`` waits for one condition only, and so for the whole
of its timeout when a Job fails."""


def release_files(
    plan: Plan,
    catalog: Catalog,
    format: str,
    document: dict[str, Any],
    selector: dict[str, str],
    port: int,
    parts: Iterable[str],
    note: str = "",
    **values: object,
) -> tuple[RenderedFile, ...]:
    """The manifest with the ``document``, the gate for its pods, and the README of these parts."""
    name = document["metadata"]["name"]
    job, config = object_name(name, "gate-"), object_name(name, "plan-")
    placeholders = {_TOOLKIT_IMAGE: "IMAGE"}
    placeholders |= {MODEL_BUCKET: "BUCKET"} if folders(plan) else {}
    placeholders |= {PROMETHEUS: "URL"} if PROMETHEUS in str(document) else {}
    apply = template("kubernetes-apply.sh").format(
        job=job,
        config=config,
        looks=-(-(start_seconds(plan) + _PROOF_SECONDS) // _LOOK_SECONDS),
        pause=_LOOK_SECONDS,
    )
    replaced = (f" -e 's|{mark}|{value}|'" for mark, value in placeholders.items())
    return (
        manifest_file(MANIFEST, [document], _heading(plan, format, note)),
        _gate(plan, format, name, job, config, selector, port),
        readme(
            plan,
            catalog,
            *parts,
            release=name,
            apply=apply,
            placeholders="".join(replaced),
            hub=template("kubernetes-hub.md") if has_hub_weights(plan) else "",
            **values,
        ),
    )


def manifest_file(path: str, documents: Iterable[Any], heading: Iterable[str]) -> RenderedFile:
    """Objects of Kubernetes as YAML, below comments."""
    return text_file(path, yaml_text(documents, heading, allow_unicode=False))


def literal(text: str) -> str:
    """``text`` in a variable or an argument of a container, where Kubernetes reads ``$(NAME)`` as a
    reference and ``$$`` as a dollar sign."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def object_name(text: str, prefix: str = "") -> str:
    """The name of an object of Kubernetes for a plan's name, after a prefix."""
    return f"{prefix}{text.lower()}"[:63].rstrip("-")


def variables(plan: Plan, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The variables of a container, with the token of the Hub where it downloads from there."""
    entries = [{"name": name, "value": literal(text)} for name, text in environment.items()]
    return [*entries, *hub_token(plan)]


def hub_token(plan: Plan) -> list[dict[str, Any]]:
    """The variable with the token of the Hub, for gated models; none without a download."""
    return [_HUB_TOKEN] if has_hub_weights(plan) else []


def resources(plan: Plan, catalog: Catalog) -> dict[str, Any]:
    """What a pod gets: GPUs, and the CPU cores and memory that leave something for the node."""
    gpus = plan.fit.tensor_parallel_size
    gpu = {"nvidia.com/gpu": gpus}
    instances = {instance.type: instance for instance in catalog.instances.instances}
    share = plan.copies
    if share is None and plan.instance_type in instances:
        share = reserved(instances[plan.instance_type], 1, gpus)
    cpu_and_memory = {"cpu": share.cpu_cores, "memory": f"{share.memory_mib}Mi"} if share else {}
    return {"requests": {**cpu_and_memory, **gpu}, "limits": gpu}


def startup_probe(plan: Plan, path: str, port: int) -> dict[str, Any]:
    """A probe that gives the engine the plan's time to start."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": _PROBE_SECONDS,
        "failureThreshold": -(-plan.startup_timeout_seconds // _PROBE_SECONDS),
    }


def start_seconds(plan: Plan) -> int:
    """How long a pod may take until it serves."""
    return 900 + plan.download_timeout_seconds + plan.startup_timeout_seconds


def has_hub_weights(plan: Plan) -> bool:
    return any(weights.kind == "hub" for weights in plan.weights.values())


def served_names(plan: Plan) -> list[str]:
    """The names under which the engine serves the model, at least one."""
    names = make_tokens("--served-model-name", plan.environment.get(SERVED_NAME, ""))
    return [name for name in names if name] or [plan.target.weights.engine_path]


def refused(plan: Plan) -> str:
    """What no object of an inference service on Kubernetes expresses; "" for nothing."""
    if reason := only_sagemaker(plan, "the nodes and their network belong to the cluster"):
        return reason
    if plan.name[0].isdigit():
        return "--name begins with a digit, and no Service's name may"
    baked = "the weights are in the image, and a model source is required"
    return baked if plan.target.weights.kind == "image" else ""


def _heading(plan: Plan, format: str, note: str = "") -> list[str]:
    """The first lines of a manifest."""
    sagemaker = f" (SageMaker: {plan.runtime.ami})" if plan.runtime.ami else ""
    return [
        f"{plan.pair} with vLLM {plan.runtime.vllm}, from `peagle render {format}`",
        f"Nodes: {plan.instance_type}, with a driver for CUDA {plan.runtime.cuda}{sagemaker}",
        *([note] if note else []),
    ]


def _location(weights: Weights) -> str:
    """Where the weights are outside the pod, as `peagle check` takes it."""
    if weights.kind == "hub" and weights.revision:
        return f"{weights.location}@{weights.revision}"
    return weights.s3_uri or weights.location


def _gate(
    plan: Plan,
    format: str,
    name: str,
    job: str,
    config: str,
    selector: dict[str, str],
    port: int,
) -> RenderedFile:
    """The gate of the release ``name``: a headless Service for its pods, and the Job, which checks
    the plan's head, if it has one, and proves the pods."""

    def container(name: str, arguments: list[str]) -> dict[str, Any]:
        return {
            "name": name,
            "image": _TOOLKIT_IMAGE,
            "command": ["peagle"],
            "args": [literal(word) for word in arguments],
        }

    service, wait = object_name(name, "pods-"), start_seconds(plan)
    pod: dict[str, Any] = {"restartPolicy": "Never"}
    if plan.speculation and plan.drafter and plan.drafter.weights:
        settings = (f"{key}={value}" for key, value in plan.overrides.settings.items())
        check = [
            "check",
            *([] if plan.target.id.startswith(f"{OWN}/") else pair_arguments(plan)[:1]),
            *("--target", _location(plan.target.weights)),
            *("--drafter", _location(plan.drafter.weights)),
            *("--k", str(plan.speculation.k)),
            *("--max-model-len", str(plan.max_model_len)),
            *("--vllm", plan.runtime.vllm),
            *("--instance-type", plan.instance_type),
            *("--tensor-parallel-size", str(plan.fit.tensor_parallel_size)),
            *("--region", plan.region),
            *(word for setting in settings for word in ("--set", setting)),
        ]
        token = {"env": hub_token(plan)} if has_hub_weights(plan) else {}
        pod["initContainers"] = [container("head-check", check) | token]
    prove = [
        "prove",
        *("--url", f"http://{service}:{port}/v1"),
        *("--model", served_names(plan)[0]),
        *("--plan", f"/plan/{PLAN}"),
        *("--instances", str(plan.engines)),
        *("--wait", f"{wait}s"),
        "--json",
    ]
    mount = {"volumeMounts": [{"name": "plan", "mountPath": "/plan"}]}
    pod["containers"] = [container("prove", prove) | mount]
    pod["volumes"] = [{"name": "plan", "configMap": {"name": config}}]
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": service},
            "spec": {
                "clusterIP": "None",
                "selector": selector,
                "ports": [{"name": "http", "port": port}],
            },
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": wait + _PROOF_SECONDS,
                "ttlSecondsAfterFinished": 7 * 24 * 3600,
                "template": {"spec": pod},
            },
        },
    ]
    note = "Fails unless the head fits and every pod reaches the plan's floor"
    return manifest_file(GATE, documents, _heading(plan, format, note))
