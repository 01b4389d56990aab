"""A variable that nothing in the image reads: the setting that it means stays off, silently.

vLLM ignores variables that its version does not have. AWS's LMI images (DJL Serving) have variables
of their own; SageMaker's SDK sets OPTION_SPECULATIVE_DRAFT_MODEL also for other images. Fields of
the endpoint's variant are no variables of the container.
"""

from difflib import get_close_matches

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm.facts import facts_of, first_version

RULE = Rule("variable-ignored", about="version", vllm_notices="never")

_OPTION, _VLLM = "OPTION_", "VLLM_"
_SPECULATIVE = "OPTION_SPECULATIVE"

_LMI = {
    _SPECULATIVE: "remove it, and name the drafter with PAIR or --drafter, and its K with --k",
    _OPTION: "remove it",
    "HF_MODEL_": "remove it: PAIR and --model-source name the model",
    "SERVING_": "remove it",
    "LMI_": "remove it",
    "DJL_": "remove it",
}
"""Variables of AWS's LMI images by their beginning, and the fix."""

_FIELDS = {
    "containerstartuphealthchecktimeout": "use --startup-timeout",
    "modeldatadownloadtimeout": "use --download-timeout",
    "inferenceamiversion": "use --ami",
    "initialinstancecount": "use --instance-count",
    "enablenetworkisolation": "use --network-isolation",
    "volumesize": "leave it out: the plan's instances have their own volume",
    "routingconfig": "leave it out: the plan decides how requests are routed",
    "managedinstancescaling": "use --max-instances",
}  # fmt: skip
"""Fields of CreateEndpointConfig and CreateModel, without case, underscores and unit."""


def check(case: Case) -> Findings:
    facts = facts_of(case.runtime.vllm)
    for name in sorted(case.environment):
        upper = name.upper()
        field = name.lower().replace("_", "").removesuffix("inseconds").removesuffix("ingb")
        lmi = next((fix for start, fix in _LMI.items() if upper.startswith(start)), None)
        if lmi is not None:
            message = f"{name} is of AWS's LMI images; vLLM's image ignores it"
            if upper.startswith(_SPECULATIVE):
                yield RULE.error("environment", f"{message} and does not draft", lmi)
                continue
            argument = upper.removeprefix(_OPTION).lower().replace("_", "-")
            if upper.startswith(_OPTION) and argument in facts.arguments:
                lmi = f"use --set {argument}=VALUE, or the plan's own option, instead"
            yield RULE.warning("environment", message, lmi)
        elif field in _FIELDS:
            message = f"{name} is a field of the endpoint, which a container does not read"
            yield RULE.warning("environment", message, _FIELDS[field])
        elif name.startswith(_VLLM) and facts.exact and name not in facts.variables:
            later = first_version("variables", name, case.runtime.vllm)
            argument = name.removeprefix(_VLLM).lower().replace("_", "-")
            meant = get_close_matches(name, facts.variables, 1, 0.85)
            fix = f"use vLLM {later} or later, or remove it" if later else "remove it"
            if argument in facts.arguments:
                fix = f"use --set {argument}=VALUE, or the plan's own option, instead"
            elif meant and not later:
                fix = f"did you mean {meant[0]}?"
            message = f"vLLM {facts.version} has no variable {name} and ignores it"
            yield RULE.warning("environment", message, fix)
