"""What a bench reads: files of prompts."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from peagle.bench.prompts import read_prompts
from peagle.errors import UserError
from tests.fuzz.inputs import binary, json_bytes
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.files import written

PROMPTS = (
    {"prompt": "def f(x):", "domain": "code", "max_tokens": 64, "id": 1},
    {"messages": [{"role": "system", "content": "Be short."},
                  {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                  {"role": "assistant", "content": None, "tool_calls": []}], "domain": "chat"},
)  # fmt: skip
FILE = b"\n".join(json.dumps(one).encode() for one in PROMPTS)


def _prompts(data: bytes) -> None:
    found = read_prompts(written("prompts.jsonl", data))
    for prompt in found.prompts:
        json.dumps(prompt.body(chat=True, max_tokens=1)).encode()
    assert sum(map(len, found.domains.values())) == len(found.prompts)


PARSERS = (
    Parser(
        "bench-prompts",
        _prompts,
        st.lists(json_bytes(*PROMPTS), min_size=1, max_size=4).map(b"\n".join) | binary(FILE),
        (UserError,),
        [FILE],
    ),
)
