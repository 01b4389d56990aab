"""An image with another vLLM or CUDA version than the plan.

Its arguments, AMI and known bugs differ from those that the plan assumes. The tag names both
versions.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import in_ecr, in_tag
from peagle.errors import nearest
from peagle.findings import Finding, error
from peagle.vllm import versions

CODE = "image-version"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error when the tag names another version, or AWS has no such tag."""
    image, runtime = case.image, case.runtime
    tagged = in_tag(image) if image is not None else None
    if image is None or tagged is None:
        return
    if versions.compare(tagged.vllm, runtime.vllm):
        message = f"the image's tag names vLLM {tagged.vllm}, but the plan is for {runtime.vllm}"
        yield error(CODE, "image", message, f"add --vllm {tagged.vllm}, or use another image")
    elif tagged.cuda is not None and runtime.tag and tagged.cuda != runtime.cuda:
        message = (
            f"the image's tag names CUDA {tagged.cuda}, but vLLM {runtime.vllm} uses {runtime.cuda}"
        )
        yield error(CODE, "image", message, f"use the tag {runtime.tag}")
    else:
        yield from _of_aws(case, image)


def _of_aws(case: Case, image: str) -> Iterator[Finding]:
    """An error for an unknown tag of AWS's own repository."""
    found = in_ecr(image)
    tags = [runtime.tag for runtime in case.runtimes.runtimes]
    if found is None or found.account not in case.runtimes.accounts.values():
        return
    if found.repository == case.runtime.repository and found.tag and found.tag not in tags:
        fix = nearest(found.tag, tags) or f"use the tag {case.runtime.tag}"
        yield error(CODE, "image", f"AWS has no image with the tag {found.tag}", fix)
