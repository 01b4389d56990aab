"""What a container in the user's own VPC must reach from its subnets.

SageMaker itself pulls the image, writes the log and answers requests, outside of the VPC.
"""

from peagle.case import Case
from peagle.checks.facts import destinations
from peagle.checks.registry import Findings, Rule

RULE = Rule("vpc-routes", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    if not case.in_vpc:
        return
    found = destinations(case.environment, case.network_isolation)
    reached = " and ".join(filter(None, (found.s3, found.internet)))
    if not reached:
        return
    fix = "a gateway endpoint for S3 in the route tables of the subnets"
    if found.internet:
        fix = f"{fix}, and a NAT gateway" if found.s3 else "a NAT gateway"
    message = f"from the subnets, the container must reach {reached}"
    yield RULE.note("subnets", message, f"it needs {fix}; deploy checks what it may look at")
