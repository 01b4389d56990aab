"""An instance type that endpoints in the region cannot have.

SageMaker rejects it, but only after weights are uploaded.
"""

from peagle.case import Case
from peagle.catalog.tables import nearest_region
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("instance-not-in-region", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    instance, region = case.instance, case.region
    if instance is None or region is None or instance.hosted_in(region) is not False:
        return
    nearest = nearest_region(region, instance.regions)
    message = f"SageMaker does not host endpoints on {instance.type} in {region}"
    fix = (
        f"use --region {nearest}, the nearest that does, or another --instance-type; if AWS has it "
        "there by now, refresh the catalogue"
    )
    command = ("peagle", "catalog", "refresh", "--hosting")
    yield RULE.error("region", message, Fix(fix, command))
