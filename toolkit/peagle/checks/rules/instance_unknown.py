"""An instance type that GPU endpoints cannot use.

SageMaker rejects it, but only after weights are uploaded.
"""

from peagle.case import Case
from peagle.catalog.find import find_instance
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix, NotFound

RULE = Rule("instance-unknown", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.instance_type is None or case.instance is not None:
        return
    try:
        find_instance(case.instances, case.instance_type)
    except NotFound as missing:
        cheapest = "leave --instance-type out to use the cheapest type that fits"
        fix = Fix(missing.fix or cheapest, options=missing.options)
        yield RULE.error("instance_type", missing.message, fix)
