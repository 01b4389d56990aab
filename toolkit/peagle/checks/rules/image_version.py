"""An image whose vLLM or CUDA version differs from the plan's.

Its arguments, AMI and known bugs differ from those that the plan assumes. The tag names both
versions. AWS's own repository has only the tags of the catalogue.
"""

from peagle.case import Case
from peagle.checks.facts import parse_ecr_image, parse_tag_versions
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix, nearest
from peagle.vllm import versions

RULE = Rule("image-version", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    image, runtime = parse_ecr_image(case.image), case.runtime
    tagged = parse_tag_versions(case.image) if case.image else None
    if tagged is None:
        return
    if versions.compare(tagged.vllm, runtime.vllm):
        message = f"the image is tagged for vLLM {tagged.vllm}, but the plan is for {runtime.vllm}"
        sentence = f"add --vllm {tagged.vllm}, or use another image"
        yield RULE.error("image", message, Fix(sentence, options=("--vllm", tagged.vllm)))
    elif tagged.cuda is not None and runtime.tag and tagged.cuda != runtime.cuda:
        message = (
            f"the image is tagged for CUDA {tagged.cuda}, but vLLM {runtime.vllm} uses "
            f"{runtime.cuda}"
        )
        yield RULE.error("image", message, f"use the tag {runtime.tag}")
    elif image is not None and image.account in case.runtimes.accounts.values():
        tags = [other.tag for other in case.runtimes.runtimes]
        if image.repository == runtime.repository and image.tag and image.tag not in tags:
            fix = nearest(image.tag, tags) or f"use the tag {runtime.tag}"
            yield RULE.error("image", f"AWS has no image with the tag {image.tag}", fix)
