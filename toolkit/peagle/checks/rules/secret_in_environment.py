"""A secret among the container's variables or vLLM's arguments.

Anyone who may call DescribeModel reads the environment; plan files and templates hold it too.
"""

from peagle.case import Case
from peagle.checks.facts import option_of
from peagle.checks.registry import Findings, Rule
from peagle_serve.logs import HIDDEN, Redactor, is_secret

RULE = Rule("secret-in-environment", about="load", vllm_notices="never")

_FIX = (
    "leave it out: the execution role gives access to S3, and callers sign their requests; for "
    "gated weights use --model-source s3://..."
)


def check(case: Case) -> Findings:
    redactor = Redactor({})
    for name, value in case.variables.items():
        if value and (is_secret(name) or HIDDEN in redactor.text(value)):
            message = f"{option_of(name)} is a secret, and DescribeModel shows it to readers"
            yield RULE.error("environment", message, _FIX)
