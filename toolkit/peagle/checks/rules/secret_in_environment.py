"""A secret among the container's variables or vLLM's arguments.

Anyone who may call DescribeModel reads the environment; plan files and templates hold it too.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle_serve.contract import PREFIX
from peagle_serve.environment import flag_of, variable_of
from peagle_serve.logs import HIDDEN, Redactor, is_secret

RULE = Rule("secret-in-environment", about="load", vllm_notices="never")

_FIX = (
    "leave it out: the execution role gives access to S3, and callers sign their requests; for "
    "gated weights use --model-source s3://..."
)


def check(case: Case) -> Findings:
    settings = {variable_of(f"--{name}"): str(value) for name, value in case.settings.items()}
    redactor = Redactor({})
    for name, value in {**settings, **case.environment}.items():
        if value and (is_secret(name) or HIDDEN in redactor.text(value)):
            shown = f"--set {flag_of(name)[2:]}" if name.startswith(PREFIX) else f"--env {name}"
            yield RULE.error(
                "environment", f"{shown} is a secret, and DescribeModel shows it to readers", _FIX
            )
