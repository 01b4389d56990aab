"""A variable or an argument that chooses the code that the engine loads.

Whoever wrote the plan then runs code in the container, with the endpoint's role.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle_serve.code_variables import code_variables
from peagle_serve.contract import PREFIX
from peagle_serve.environment import flag_of, variable_of

RULE = Rule("code-variable", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    settings = {variable_of(f"--{name}"): str(value) for name, value in case.settings.items()}
    for name in code_variables({**settings, **case.environment}):
        shown = f"--set {flag_of(name)[2:]}" if name.startswith(PREFIX) else f"--env {name}"
        yield RULE.warning(
            "environment",
            f"{shown} chooses the code that the engine loads, which runs with the endpoint's role",
            "remove it, unless you trust who wrote it; an engine that is a process of this machine "
            "refuses it",
        )
