"""A variable or an argument that chooses the code that the engine loads.

The author of the plan then runs code in the container, with the endpoint's role.
"""

from peagle.case import Case
from peagle.checks.facts import option_of
from peagle.checks.registry import Findings, Rule
from peagle_serve.code_variables import CONFIG_FILE, code_variables

RULE = Rule("code-variable", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    for name in code_variables(case.variables):
        if name == CONFIG_FILE:
            yield RULE.error(
                "environment",
                "--config names a file of arguments that vLLM reads past every check, also one in "
                "the weights' folder",
                "set each argument of the file with --set",
            )
            continue
        yield RULE.warning(
            "environment",
            f"{option_of(name)} chooses the code that the engine loads, which runs with the "
            "endpoint's role",
            "remove it, unless you trust who wrote it; an engine that is a process of this machine "
            "refuses it",
        )
