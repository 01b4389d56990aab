"""A target whose vocabulary the engine downloads at start, next to its weights.

GPT-OSS needs openaipublic.blob.core.windows.net then; without egress the engine does not start.
"""

from peagle.case import Case
from peagle.checks.facts import needs_vocabulary, parse_ecr_image
from peagle.checks.registry import Findings, Rule
from peagle_serve.contract import (
    HUB_ID,
    MODEL,
    VOCABULARY_FILE,
    VOCABULARY_VARIABLE,
    is_s3_uri,
)

RULE = Rule("vocabulary-download", about="target", vllm_notices="at start")

_FILE = f"put {VOCABULARY_FILE} next to the weights (weights sync does, where it finds the file)"


def check(case: Case) -> Findings:
    model = case.environment.get(MODEL, "")
    if (
        not (needs_vocabulary(case.target.architecture) and model)
        or case.on_cpu
        or VOCABULARY_VARIABLE in case.environment
    ):
        return
    message = (
        "the engine downloads GPT-OSS's vocabulary from openaipublic.blob.core.windows.net at start"
    )
    image = parse_ecr_image(case.image)
    is_own = case.image is not None and not (
        image and image.account in case.runtimes.accounts.values()
    )
    if HUB_ID.fullmatch(model):
        unless = ", unless the image has it" if is_own else ""
        yield RULE.note("target", f"{message}{unless}", "allow that host in addition to the hub's")
    elif is_s3_uri(model):
        fix = "mount the weights with --weights-by mount, or build an image with weights"
        yield RULE.warning("target", f"{message}: weights that are streamed cannot carry it", fix)
    elif is_own:
        unless = f"unless {VOCABULARY_FILE} is next to the weights"
        report = RULE.warning if case.network_isolation else RULE.note
        yield report("target", f"{message}, {unless}", f"without egress {_FILE}")
    else:
        fix = f"{_FILE} and add --env {VOCABULARY_VARIABLE}={model}"
        yield RULE.warning("target", message, f"without egress {fix}")
