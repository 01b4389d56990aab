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
from peagle.render.files import RenderedFile, readme, request_example
from peagle.render.kubernetes import FILES as FILES
from peagle.render.kubernetes import (
    HUB_TOKEN,
    MANIFEST,
    applying,
    gate_file,
    has_hub_weights,
    heading,
    literal,
    manifest_file,
    object_name,
    refused,
    resources,
    served_names,
    startup_probe,
    variables,
)
from peagle.render.requests import digest_of
from peagle_serve.contract import (
    ML_ROOT,
    MODEL,
    OWN_VARIABLES,
    PREFIX,
    SERVED_NAME,
    SPECULATION,
)
from peagle_serve.environment import arguments, read_speculative_config

API_VERSION, KIND = "serving.kserve.io/v1alpha2", "LLMInferenceService"
DOCUMENTED = "KServe 0.20"
"""The version whose documentation and types this follows."""

TARGET_FOLDER, DRAFTER_FOLDER = "/mnt/models", "/mnt/drafter"
"""KServe mounts the target; an init container of ours downloads the head."""

ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
INITIALIZER = "kserve/storage-initializer:v0.20.0"
RELEASE_LABEL = "peagle-release"
PORT = 8000
FULL_WEIGHT = 100
"""The weight of a revision that is alone."""

_GIVEN = (MODEL, SERVED_NAME, f"{PREFIX}REVISION", f"{PREFIX}PORT")
"""Arguments that KServe gives to vLLM itself."""

_PLAIN_NAME = re.compile(r"[\w./:@+-]+", re.ASCII)
_LONGEST_STEM = 49


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    document = service(plan, catalog)
    name = document["metadata"]["name"]
    group = document["spec"]["router"]["route"]["group"]
    not_run = f"Follows the documentation of {DOCUMENTED}; not run on a cluster"
    return (
        manifest_file(MANIFEST, [document], heading(plan, "kserve", not_run)),
        gate_file(plan, "kserve", name, {RELEASE_LABEL: name}, PORT),
        readme(
            plan,
            catalog,
            "kserve",
            api=API_VERSION,
            documented=DOCUMENTED,
            group=group,
            weight=FULL_WEIGHT,
            route="chat/completions" if plan.proof.chat else "completions",
            body=request_example(plan, model=served_names(plan)[0]),
            **applying(plan, name),
        ),
    )


def unsupported(plan: Plan) -> str:
    """What only an endpoint, or the container's own entrypoint, does."""
    overrides = plan.overrides
    reasons = {
        "its autoscaler has no requests per pod as a target (--max-instances)": bool(plan.scaling),
        "it captures no requests (--capture-data)": bool(plan.observe and plan.observe.capture),
        "AWS's tags are not those of Kubernetes (--tag)": bool(plan.company.tags),
        "it has no time limit for a download (download_timeout)": bool(overrides.download_timeout),
        f"{_NO_ENTRYPOINT} that compares the SHA-256s which --online pins": (
            plan.pins.weights is not None or bool(plan.pins.warm) or plan.pins.any_warm
        ),
        f"{_NO_ENTRYPOINT} that reads --env {_own_variable(plan)}": bool(_own_variable(plan)),
        "it takes one plain name of the model (served-model-name)": not all(
            _PLAIN_NAME.fullmatch(name) for name in served_names(plan)
        )
        or len(served_names(plan)) != 1,
        f"a setting names a folder below {ML_ROOT}, which its pods do not have": _needs_mount(plan),
    }
    return refused(plan) or next((why for why, applies in reasons.items() if applies), "")


_NO_ENTRYPOINT = "it starts vLLM without the entrypoint"


def _own_variable(plan: Plan) -> str:
    """A variable of the entrypoint that the user sets, if any."""
    return next((name for name in OWN_VARIABLES if name in plan.overrides.environment), "")


def _needs_mount(plan: Plan) -> bool:
    return plan.target.weights.kind != "image" and any(
        ML_ROOT in text for text in engine_variables(plan).values()
    )


def service(plan: Plan, catalog: Catalog, weight: int = FULL_WEIGHT) -> dict[str, Any]:
    """The ``LLMInferenceService``; its name has a hash of all but replicas and weight."""
    group = object_name(plan.name)
    spec: dict[str, Any] = {
        "model": {"uri": uri(plan.target.weights), "name": served_names(plan)[0]},
        "template": _pod(plan, catalog),
    }
    name = f"{group[:_LONGEST_STEM].rstrip('-')}-{digest_of(spec)}"
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "replicas": plan.engines,
            "labels": {RELEASE_LABEL: name},
            **spec,
            "router": {
                "route": {"group": group, "weight": weight},
                "gateway": {},
                "scheduler": {},
            },
        },
    }


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
    if SPECULATION in variables and plan.drafter and plan.drafter.weights:
        config = read_speculative_config(variables)
        speculation = {key: value for key, value in config.items() if key != "revision"}
        speculation["model"] = DRAFTER_FOLDER
        variables[SPECULATION] = json.dumps(speculation, separators=(",", ":"), ensure_ascii=False)
    return variables


def additional_arguments(engine: Mapping[str, str]) -> str:
    """The value of VLLM_ADDITIONAL_ARGS from which the shell makes exactly the arguments of these
    variables."""
    return template_literal(literal(shlex.join(arguments(engine))))


def template_literal(text: str) -> str:
    """``text`` in an object that KServe reads as a Go template."""
    return text.replace("{{", "{{`{{`}}")


def _pod(plan: Plan, catalog: Catalog) -> dict[str, Any]:
    others = {
        name: template_literal(text)
        for name, text in plan.environment.items()
        if not name.startswith(PREFIX) and name not in OWN_VARIABLES
    }
    head = plan.drafter.weights if plan.drafter else None
    mount = {"name": "drafter", "mountPath": DRAFTER_FOLDER}
    hub = [HUB_TOKEN] if has_hub_weights(plan) else []
    main = {
        "name": "main",
        "image": plan.runtime.image,
        "env": [
            {"name": ARGUMENTS, "value": additional_arguments(engine_variables(plan))},
            *variables(others),
            *hub,
        ],
        "resources": resources(plan, catalog),
        "startupProbe": startup_probe(plan, "/health", PORT),
        # AWS's image of vLLM has no other user, and KServe's preset asks for one.
        "securityContext": {"runAsNonRoot": False},
    }
    pod: dict[str, Any] = {
        "nodeSelector": {
            "node.kubernetes.io/instance-type": plan.instance_type.removeprefix("ml.")
        },
        "containers": [main],
    }
    if head:
        main["volumeMounts"] = [mount | {"readOnly": True}]
        pod["initContainers"] = [
            {
                "name": "drafter",
                "image": INITIALIZER,
                "args": [literal(uri(head)), DRAFTER_FOLDER],
                **({"env": hub} if head.kind == "hub" else {}),
                "volumeMounts": [mount],
            }
        ]
        pod["volumes"] = [{"name": "drafter", "emptyDir": {}}]
    return pod
