"""What a bench reads: files of prompts and of acceptance, and answers with tokens."""

from __future__ import annotations

import json
from unittest import mock

from peagle.bench.acceptance import rates_of, read_acceptance
from peagle.bench.lossless import first_difference, read_transcript
from peagle.bench.server import OpenAiServer
from peagle.bench.workloads import read_prompts
from peagle.errors import EngineError, PeagleError, UserError
from tests.fuzz.inputs import encoded
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.engines import Connection, response
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


COUNTED = {
    "domain": "all domains", "prompts": 2, "groups": 2, "output_tokens": 80,
    "acceptance": {"length": 2.0, "per_position": [0.7, 0.2, 0.1], "drafts": 40,
                   "basis": "measured"},
    "interval": {"value": 2.0, "low": 1.9, "high": 2.1},
}  # fmt: skip
ACCEPTANCE = {
    "server": {"name": "peagle-tiny", "where": "local", "base_url": "http://a/v1", "model": "m"},
    "setting": {"drafter": "p-eagle", "k": 3}, "source": "counters",
    "started": "2026-11-22T15:00:00+00:00", "file": "p.jsonl", "sha256": "0" * 64, "k": 3,
    "request": {"max_tokens": 256, "temperature": 0.0, "concurrency": 4,
                "groups": 20},
    "total": COUNTED, "domains": [{**COUNTED, "domain": "code"}],
    "refused": [{"line": 3, "message": "too long"}], "others_sent": False, "incomplete": "",
    "format": 1,
}  # fmt: skip


def _acceptance(data: bytes) -> None:
    found = read_acceptance(written("acceptance.json", data))
    for one in found.domains:
        assert 1 <= 1 + sum(rates_of(found, found.k, one.domain)) <= found.k + 1
    json.dumps(found.document(), allow_nan=False)


CHAT = {
    "choices": [{
        "message": {"content": "a"}, "token_ids": [7, 8],
        "logprobs": {"content": [
            {"top_logprobs": [{"token": "token_id:7", "logprob": -0.1},
                              {"token": "token_id:9", "logprob": -2}]},
            {"top_logprobs": [{"token": "token_id:8", "logprob": 0.0}]},
        ]},
    }],
    "prompt_token_ids": [1],
}  # fmt: skip
COMPLETION = {
    "choices": [{
        "text": "a", "token_ids": [7, 9], "prompt_token_ids": [1],
        "logprobs": {"top_logprobs": [{"token_id:7": -0.1, "token_id:9": -2}, {"token_id:8": 0}]},
    }],
}  # fmt: skip
ANSWERS = [json.dumps(one).encode() for one in (CHAT, COMPLETION)]


def _answer(content: bytes) -> None:
    """As an answer over HTTP of each status, then as the transcript of either server."""
    server = OpenAiServer("http://127.0.0.1:1/v1", "m")
    for status in (400, 404, 500, 200):
        Connection.received = response(content, status)
        try:
            with mock.patch("http.client.HTTPConnection", Connection):
                answer = server.ask({"prompt": "a"})
        except (UserError, EngineError):
            continue
        for is_target in (False, True):
            found = read_transcript(answer, 1, is_target)
            first_difference(found, found)


PARSERS = (
    Parser("bench-acceptance", _acceptance, [encoded(ACCEPTANCE)], UserError),
    Parser("bench-answer", _answer, ANSWERS, PeagleError),
    Parser("bench-prompts", _prompts, [FILE], UserError),
)
