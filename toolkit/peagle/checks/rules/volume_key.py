"""A key of KMS for an instance that keeps weights on its local storage.

SageMaker's service model: KmsKeyId does not encrypt the local storage of Nitro instances.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("volume-key", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.kms_key is None or case.instance is None or not case.instance.nvme_gb:
        return
    yield RULE.note(
        "kms_key",
        f"the key does not encrypt the local storage of {case.instance.type}: a module of its "
        "hardware does, with a key of its own",
        "nothing, unless your rules demand that key; if SageMaker rejects it for this type, use "
        "the default encryption of the bucket in place of --kms-key",
    )
