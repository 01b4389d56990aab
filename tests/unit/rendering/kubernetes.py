"""What Kubernetes does with a manifest, and the models of HyperPod's operator."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import yaml
from hypothesis import strategies as st

from peagle.planning import Plan
from peagle.render import render
from tests.unit.rendering.plans import CATALOG

NASTY = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=24),
    st.text("'\"$`\\{}()\n\t #!*;&|<>~=-a0é漢", max_size=24),
    st.sampled_from(
        ["$(HOME)", "$$(HOME)", "$$$", "{{ .Spec }}", "{{`x`}}", "1e3", "0o7", "y", ""]
    ),
)
"""Values that a shell, YAML, Kubernetes or a template would read as something else."""


def manifests(format: str, plan: Plan, path: str = "inference.yaml") -> list[Any]:
    """The objects in a rendered file."""
    files = {file.path: file.content for file in render(format, plan, CATALOG)}
    return list(yaml.safe_load_all(files[path]))


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A variable's value as Kubernetes reads it (k8s.io/kubernetes third_party/forked/golang/
    expansion): ``$(NAME)`` is a reference to a variable that is known, ``$$`` a dollar sign."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


def environment_of(container: Mapping[str, Any], key: str = "env") -> dict[str, str]:
    """What a container of a pod has in its environment."""
    values: dict[str, str] = {}
    for variable in container[key]:
        if "value" in variable:
            assert isinstance(variable["value"], str), variable
            values[variable["name"]] = expanded(variable["value"], values)
    return values


@cache
def operator_models() -> Any:
    """The module of ``sagemaker-hyperpod`` with the operator's objects. The package itself needs
    the client of Kubernetes and much more; this module needs pydantic."""
    files = distribution("sagemaker-hyperpod").files or []
    file = next(item for item in files if item.name == "hp_endpoint_config.py")
    spec = spec_from_file_location("hp_endpoint_config", str(file.locate()))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def from_template(text: str) -> str:
    """A Go template whose only actions are raw strings, as KServe fills it in. It fails for any
    other action."""
    parts, rest = [], text
    while True:
        before, opened, rest = rest.partition("{{")
        parts.append(before)
        if not opened:
            return "".join(parts)
        assert rest.startswith("`"), f"an action of the template: {{{{{rest[:20]}"
        raw, _, rest = rest[1:].partition("`")
        assert rest.startswith("}}")
        parts.append(raw)
        rest = rest[2:]


PRESET = r"""
eval "exec vllm serve /mnt/models \
  --served-model-name "{name}" "publishers/space/models/{name}" \
  --port 8000 \
  --root-path /space/service \
  ${{ACCESS_LOG_ARGS}} \
  ${{VLLM_ADDITIONAL_ARGS}} \
  $@"
"""
"""The end of the script that KServe's preset for one node runs with ``/bin/bash -c SCRIPT --``
(config/llmisvcconfig/config-llm-template.yaml), where its Go template is filled in."""


def preset(document: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The script and the environment of the container ``main`` of an LLMInferenceService."""
    main = next(
        each for each in document["spec"]["template"]["containers"] if each["name"] == "main"
    )
    env = [
        {**each, "value": from_template(each["value"])} if "value" in each else each
        for each in main["env"]
    ]
    return PRESET.format(name=document["spec"]["model"]["name"]), environment_of({"env": env})
