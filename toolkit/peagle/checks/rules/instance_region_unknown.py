"""An instance type for which the catalogue does not say whether the region has it.

SageMaker rejects a type that the region does not have, but only after weights are uploaded.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("instance-region-unknown", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    instance, region = case.instance, case.region
    if instance is None or region is None or region not in case.runtimes.accounts:
        return
    if instance.hosted_in(region) is None:
        message = f"whether {region} hosts endpoints on {instance.type} is unknown"
        command = ("peagle", "catalog", "refresh", "--hosting")
        yield RULE.note("region", message, Fix("ask AWS's price list", command))
