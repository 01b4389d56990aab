"""A load format that reads something other than safetensors, such as pickles, which may run code.

The header of a safetensors file is JSON, and the rest is numbers, so loading one runs no code.
"""

import json

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle_serve.contract import LOAD_FORMAT, PREFIX, SPECULATION
from peagle_serve.environment import flag_of
from peagle_serve.environment_checks import SAFE_FORMATS, unsafe_load_format

RULE = Rule("weights-format", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    speculation = {SPECULATION: json.dumps(dict(case.speculative_settings), default=str)}
    for name, value in {**speculation, **case.variables}.items():
        if name.startswith(PREFIX) and (load_format := unsafe_load_format(name, value)) is not None:
            flag = flag_of(name)
            what = (
                f"{flag} {load_format}"
                if name == LOAD_FORMAT
                else (f"the load format {load_format} in {flag}")
            )
            yield RULE.error(
                "vllm",
                f"{what} reads other files than safetensors, which may run code",
                f"leave it out, or use one of {', '.join(sorted(SAFE_FORMATS))}",
            )
