"""No host AMI given where SageMaker's default AMI has too old a driver for the image.

CUDA 13 images do not start on the default AMI of some instance families: vLLM finds no GPU.
"""

from peagle.case import Case, family_of
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules.ami_driver import planned_ami

RULE = Rule("ami-missing", about="hardware", vllm_notices="at start")


def check(case: Case) -> Findings:
    if case.instance is None or case.ami is not None or case.on_cpu:
        return
    family = family_of(case.instance.type)
    if family in case.runtimes.ami_families:
        cuda = case.runtime.cuda
        message = f"the image uses CUDA {cuda}; the default AMI of {family} has an older driver"
        yield RULE.error("ami", message, planned_ami(case))
