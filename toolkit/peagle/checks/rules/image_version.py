"""The image holds the vLLM, and the CUDA, that everything else was planned for.

Its tag says both. Another version has other arguments, another AMI and other bugs than the plan
says.
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
    """An error when the tag says another version, or is none of AWS's own."""
    image, runtime = case.image, case.runtime
    tagged = in_tag(image) if image is not None else None
    if image is None or tagged is None:
        return
    if versions.compare(tagged.vllm, runtime.vllm):
        message = f"the image's tag says vLLM {tagged.vllm}, and the plan is for {runtime.vllm}"
        yield error(CODE, "image", message, f"add --vllm {tagged.vllm}, or give another image")
    elif tagged.cuda is not None and runtime.tag and tagged.cuda != runtime.cuda:
        message = f"the image's tag says CUDA {tagged.cuda}, and vLLM {runtime.vllm} is on "
        fix = f"use the tag {runtime.tag}"
        yield error(CODE, "image", f"{message}{runtime.cuda}", fix)
    else:
        yield from _of_aws(case, image)


def _of_aws(case: Case, image: str) -> Iterator[Finding]:
    """An error for a tag of AWS's own repository that nobody knows."""
    found = in_ecr(image)
    tags = [runtime.tag for runtime in case.runtimes.runtimes]
    if found is None or found.account not in case.runtimes.accounts.values():
        return
    if found.repository == case.runtime.repository and found.tag and found.tag not in tags:
        fix = nearest(found.tag, tags) or f"use the tag {case.runtime.tag}"
        yield error(CODE, "image", f"AWS has no image with the tag {found.tag}", fix)
