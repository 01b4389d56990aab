"""A GPU that the CUDA version of the image or host AMI does not support.

Blackwell needs CUDA 12.8 (sm_100, sm_120) or 12.9 (sm_103). With an older version vLLM finds no
GPU, or no kernels for it.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules import ami_driver
from peagle.checks.rules.ami_driver import ami_of, cuda_version
from peagle.vllm.gpus import FIRST_CUDA

RULE = Rule("gpu-too-new", about="hardware", vllm_notices="at start")


def check(case: Case) -> Findings:
    instance, ami = case.instance, ami_of(case)
    first = FIRST_CUDA.get(instance.gpu_architecture) if instance else None
    if instance is None or first is None or case.on_cpu:
        return
    parts = {f"the image of vLLM {case.runtime.vllm}": case.runtime.cuda}
    if ami is not None and not any(ami_driver.check(case)):
        parts[f"the AMI {ami.name}"] = ami.cuda
    for who, cuda in parts.items():
        if cuda_version(cuda) < cuda_version(first):
            message = f"the {instance.gpu} of {instance.type} needs CUDA {first}; {who} has {cuda}"
            fix = "use a newer --vllm with its AMI, or leave --ami out"
            yield RULE.error("instance_type", message, fix)
