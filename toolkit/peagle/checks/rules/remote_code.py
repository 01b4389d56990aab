"""The plan lets the engine run code from a model's repository (``trust_remote_code``).

Weights are data: vLLM's own model classes load them, and no code from their repository runs.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle_serve.environment_checks import trusts_remote_code

RULE = Rule("remote-code", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    speculation = {"speculative-config": str(dict(case.speculative_settings))}
    for name, value in {**case.variables, **speculation}.items():
        if trusts_remote_code(name, value):
            yield RULE.error(
                "vllm",
                f"{name} lets code from the model's repository run, with the permissions of the "
                "execution role",
                "leave it out, and use a model that this vLLM version supports itself",
            )
            return
