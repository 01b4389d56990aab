"""Whether the drafter is loaded: it is when it has drafted.

vLLM's configuration, and the counters that it registers from it, say what was asked for. So the
server is asked once, by itself, for a few tokens, and must have counted a draft. This also warms
the kernels that the first user would have waited for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from serve.counters import counters_of
from serve.inner import Application, Message, call
from serve.json_text import members
from serve.names import SPECULATION

TOKENS = 16
_PATIENCE_SECONDS = 5.0
"""vLLM counts a step just after it has answered."""
_POLL_SECONDS = 0.05
_BODY = json.dumps(
    {"prompt": "Hello", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
).encode()
_MAY_FIND_NOTHING = ("ngram", "ngram_gpu", "suffix", "custom_class")
"""Methods that propose from the text so far, which may hold nothing to propose."""
_SCHEDULE = "num_speculative_tokens_per_batch_size"
"""A schedule of K may say none for a single request."""


def asked_for(environment: Mapping[str, str]) -> bool:
    """Whether a drafter was asked for that always drafts. Its drafts are counted (``checks``)."""
    try:
        config = members(environment.get(SPECULATION, ""))
    except ValueError:
        return False
    method = config["method"].value if "method" in config else None
    return method not in _MAY_FIND_NOTHING and _SCHEDULE not in config


async def prove(app: Application, scope: Message) -> str:
    """Why the drafter cannot be loaded; "" when it has drafted, or when the model takes no prompt
    and nothing can be seen."""
    status, answer = await call(app, scope, "POST", "/invocations", _BODY)
    if status >= 500:
        return f"the engine answered its first request with {status}: {answer[:200]}"
    if status != 200:
        return ""
    clock = asyncio.get_running_loop().time
    until = clock() + _PATIENCE_SECONDS
    while clock() < until:
        status, page = await call(app, scope, "GET", "/metrics")
        if status != 200 or counters_of(page)["drafts"] > 0:
            return ""
        await asyncio.sleep(_POLL_SECONDS)
    return f"speculation was asked for, and {TOKENS} tokens came without a draft"
