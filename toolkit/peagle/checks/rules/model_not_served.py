"""A target whose class this vLLM version does not have.

vLLM removed it or never had it, and its class in transformers does not allow vLLM's attention
(_raise_for_unsupported of model_executor/models/registry.py).
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm.facts import architectures
from peagle.vllm.versions import compare

RULE = Rule("model-not-served", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    name, version = case.architecture.class_name, case.runtime.vllm
    table = architectures()
    last = table["not_served"].get(name)
    if last and compare(version, last) > 0:
        message = f"vLLM {version} does not serve {name}: the last version that does is {last}"
        yield RULE.error("target", message, f"use --vllm {last}, or another model")
    elif last == "" and compare(version, table["versions"]["vllm"]) <= 0:
        message = (
            f"vLLM {version} does not serve {name}: it has no code for this class, and the class "
            "in transformers does not allow vLLM's attention"
        )
        yield RULE.error("target", message, "use a model of another architecture")
