"""The plan for KServe: an ``LLMInferenceService``, whose pods run ``vllm serve /mnt/models``.

KServe's preset puts the variable VLLM_ADDITIONAL_ARGS into a command line that its shell evaluates.
Before, KServe reads the object as a Go template, and Kubernetes expands references in the variable:
a value is quoted for the shell, then for Kubernetes, then for the template.

Every revision is an object of its own; those of a plan's name are one group, in which KServe splits
requests by weight.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.planning.plan import Plan, Weights
from peagle.render.files import RenderedFile, request_example
from peagle.render.kubernetes import FILES as FILES
from peagle.render.kubernetes import (
    hub_token,
    literal,
    object_name,
    refused,
    release_files,
    resources,
    served_names,
    startup_probe,
    variables,
)
from peagle.render.requests import compute_digest
from peagle_serve.contract import ML_ROOT, MODEL, OWN_VARIABLES, PREFIX, SERVED_NAME, SPECULATION
from peagle_serve.environment import arguments, read_speculative_config

API_VERSION, KIND = "serving.kserve.io/v1alpha2", "LLMInferenceService"
_DOCUMENTED = "KServe 0.20"
"""The version whose documentation and types this follows."""

TARGET_FOLDER, DRAFTER_FOLDER = "/mnt/models", "/mnt/drafter"
"""KServe mounts the target; an init container of ours downloads the head."""

_RELEASE_LABEL = "peagle-release"
PORT = 8000
_FULL_WEIGHT = 100
"""The weight of a revision that is alone."""

_GIVEN = (MODEL, SERVED_NAME, f"{PREFIX}REVISION", f"{PREFIX}PORT")
"""Arguments that KServe gives to vLLM itself."""


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    group = object_name(plan.name)
    spec: dict[str, Any] = {
        "model": {"uri": uri(plan.target.weights), "name": served_names(plan)[0]},
        "template": _pod(plan, catalog),
    }
    # The name has a hash of all but replicas and weight.
    name = f"{group[:49].rstrip('-')}-{compute_digest(spec)}"
    route = {"group": group, "weight": _FULL_WEIGHT}
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "replicas": plan.engines,
            "labels": {_RELEASE_LABEL: name},
            **spec,
            "router": {"route": route, "gateway": {}, "scheduler": {}},
        },
    }
    return release_files(
        plan,
        catalog,
        "kserve",
        document,
        {_RELEASE_LABEL: name},
        PORT,
        ("kserve",),
        f"Follows the documentation of {_DOCUMENTED}; not run on a cluster",
        api=API_VERSION,
        documented=_DOCUMENTED,
        group=group,
        weight=_FULL_WEIGHT,
        route="chat/completions" if plan.proof.chat else "completions",
        body=request_example(plan, model=served_names(plan)[0]),
    )


def unsupported(plan: Plan) -> str:
    """What only an endpoint, or the container's own entrypoint, does."""
    names, no_entrypoint = served_names(plan), "it starts vLLM without the entrypoint"
    own_variable = next((name for name in OWN_VARIABLES if name in plan.overrides.environment), "")
    is_plain = len(names) == 1 and re.fullmatch(r"[\w./:@+-]+", names[0], re.ASCII)
    below_root = plan.target.weights.kind != "image" and any(
        ML_ROOT in text for text in engine_variables(plan).values()
    )
    reasons = {
        "its autoscaler has no requests per pod as a target (--max-instances)": plan.scaling,
        "it captures no requests (--capture-data)": plan.observe and plan.observe.capture,
        "AWS's tags are not those of Kubernetes (--tag)": plan.company.tags,
        "it has no time limit for a download (download_timeout)": plan.overrides.download_timeout,
        f"{no_entrypoint} that compares the SHA-256s which --online pins": (
            plan.pins.weights is not None or plan.pins.warm or plan.pins.any_warm
        ),
        f"{no_entrypoint} that reads --env {own_variable}": own_variable,
        "it takes one plain name of the model (served-model-name)": not is_plain,
        f"a setting names a folder below {ML_ROOT}, which its pods do not have": below_root,
    }
    return refused(plan) or next((why for why, applies in reasons.items() if applies), "")


def uri(weights: Weights) -> str:
    """The weights as KServe's storage initializer names them."""
    if weights.kind == "hub":
        return f"hf://{weights.location}" + (f":{weights.revision}" if weights.revision else "")
    return (weights.s3_uri or weights.location).rstrip("/")


def engine_variables(plan: Plan) -> dict[str, str]:
    """The ``SM_VLLM_*`` variables of what KServe does not set itself, with the head where its init
    container puts it."""
    variables = {
        name: text
        for name, text in plan.environment.items()
        if name.startswith(PREFIX) and name not in _GIVEN
    }
    if SPECULATION in variables and "drafter" in plan.weights:
        config = read_speculative_config(variables)
        speculation = {key: value for key, value in config.items() if key != "revision"}
        speculation["model"] = DRAFTER_FOLDER
        variables[SPECULATION] = json.dumps(speculation, separators=(",", ":"), ensure_ascii=False)
    return variables


def additional_arguments(engine: Mapping[str, str]) -> str:
    """The value of VLLM_ADDITIONAL_ARGS from which the shell makes exactly the arguments of these
    variables."""
    return _template_literal(literal(shlex.join(arguments(engine))))


def _template_literal(text: str) -> str:
    """``text`` in an object that KServe reads as a Go template."""
    return text.replace("{{", "{{`{{`}}")


def _pod(plan: Plan, catalog: Catalog) -> dict[str, Any]:
    others = {
        name: _template_literal(text)
        for name, text in plan.environment.items()
        if not name.startswith(PREFIX) and name not in OWN_VARIABLES
    }
    engine = additional_arguments(engine_variables(plan))
    main: dict[str, Any] = {
        "name": "main",
        "image": plan.runtime.image,
        "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": engine}, *variables(plan, others)],
        "resources": resources(plan, catalog),
        "startupProbe": startup_probe(plan, "/health", PORT),
        # AWS's image of vLLM has no other user, and KServe's preset asks for one.
        "securityContext": {"runAsNonRoot": False},
    }
    node = {"node.kubernetes.io/instance-type": plan.instance_type.removeprefix("ml.")}
    pod: dict[str, Any] = {"nodeSelector": node, "containers": [main]}
    if head := plan.weights.get("drafter"):
        mount = {"name": "drafter", "mountPath": DRAFTER_FOLDER}
        main["volumeMounts"] = [mount | {"readOnly": True}]
        pod["initContainers"] = [
            {
                "name": "drafter",
                "image": "kserve/storage-initializer:v0.20.0",
                "args": [literal(uri(head)), DRAFTER_FOLDER],
                **({"env": hub_token(plan)} if head.kind == "hub" else {}),
                "volumeMounts": [mount],
            }
        ]
        pod["volumes"] = [{"name": "drafter", "emptyDir": {}}]
    return pod
