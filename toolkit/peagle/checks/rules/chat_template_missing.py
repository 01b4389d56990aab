"""A --chat-template that names a file which neither the image nor the weights have.

vLLM takes a value without Jinja's braces as a path (0.28.0, entrypoints/chat_utils.py) and does
not start where it cannot open it.
"""

from peagle.case import Case
from peagle.checks.facts import is_aws_image
from peagle.checks.registry import Findings, Rule
from peagle_serve.contract import ML_ROOT

RULE = Rule("chat-template-missing", about="load", vllm_notices="at start")

_NAME = "chat-template"
_EXAMPLES = ("examples/", "/vllm-workspace/examples/")
"""vLLM's own image has these; AWS's is built from it."""


def check(case: Case) -> Findings:
    named = case.settings.get(_NAME)
    mounted = f"{ML_ROOT.rstrip('/')}/"
    of_aws = case.image is None or is_aws_image(case.image, case.runtimes)
    if not isinstance(named, str) or case.on_cpu or any(one in named for one in "{}\n"):
        return
    if named.startswith(mounted):
        note = f"--{_NAME} {named}: the weights must have this file, which is not checked"
        yield RULE.note("vllm", note, "copy it beside the target's config.json before you sync")
    elif of_aws and not named.startswith(_EXAMPLES):
        message = f"--{_NAME} {named}: the image of vLLM has no such file"
        fix = (
            f"put it beside the target's config.json and name it as {mounted}model/FILE, or use "
            "an image of your own that has it"
        )
        yield RULE.error("vllm", message, fix)
