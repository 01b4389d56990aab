"""An image of your own with a newer vLLM version than any in the catalogue.

The rules about versions, and the memory and speed models, were checked with older ones.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm import versions

RULE = Rule("vllm-newer-than-catalogue", about="version", vllm_notices="never")


def check(case: Case) -> Findings:
    known = (versions.normalize(runtime.vllm) for runtime in case.runtimes.runtimes)
    newest = max(known, key=versions.parse)
    if case.image is None or versions.compare(case.runtime.vllm, newest) <= 0:
        return
    message = (
        f"vLLM {case.runtime.vllm} is newer than {newest}, the newest in the catalogue: rules "
        "about versions may not apply"
    )
    fix = (
        f"read the release notes of vLLM {case.runtime.vllm} about speculative decoding, or use an "
        f"image with {newest}"
    )
    yield RULE.note("vllm", message, fix)
