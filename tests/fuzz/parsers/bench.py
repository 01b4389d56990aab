"""What a bench and its report read: prompts, acceptance, records, answers, results, and options."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

from peagle.bench.acceptance import rates_of, read_acceptance
from peagle.bench.aiperf import requests_in
from peagle.bench.evidence import evidence_document, read_result
from peagle.bench.lossless import first_difference, read_transcript
from peagle.bench.report import summary_of
from peagle.bench.sweep import SweepRequest, catalog_name
from peagle.bench.targets import (
    OpenAiServer,
    probe,
    served_models,
    setting_of_config,
    target_of_url,
    waiting_of,
)
from peagle.bench.workloads import read_prompts
from peagle.errors import EngineError, PeagleError, UserError
from peagle.speed.slo import parse_slo
from tests.fuzz.inputs import encoded, json_texts
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.engines import Connection, response
from tests.fuzz.parsers.files import written
from tests.unit.bench.made import RESULT, ROWS

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


METADATA = {"phase_name": "load1", "request_start_ns": 1795360789440639418,
            "request_end_ns": 1795360789604441464}  # fmt: skip
RECORD = {
    "metadata": METADATA,
    "metrics": {
        "time_to_first_token": {"value": 69.1, "unit": "ms"},
        "inter_chunk_latency": {"value": [10.3, 10.5], "unit": "ms"},
        "usage_completion_tokens": {"value": 20, "unit": "tokens"},
        "usage_prompt_tokens": {"value": 7, "unit": "tokens"},
    },
}
FAILED = {
    "metadata": METADATA, "metrics": {},
    "error": {"code": 500, "type": "X", "message": '{"error": {"message": "died"}}'},
}  # fmt: skip
RECORDS = b"".join(json.dumps(record).encode() + b"\n" for record in (RECORD, FAILED))


def _records(data: bytes) -> None:
    for request in requests_in(data.splitlines(keepends=True)):
        assert request.error or request.output_tokens
        assert request.repetition >= 0


PAGE = (
    'vllm:num_requests_waiting{engine="0"} 3.0\n'
    'vllm:spec_decode_num_drafts_total{engine="0"} 10.0\n'
)
MODELS = {"object": "list", "data": [{"id": "m"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def _served(given: tuple[str, bytes, list[str], str]) -> None:
    page, models, events, url = given
    server = OpenAiServer("http://127.0.0.1:1/v1", "m")
    stream = "".join(f"data: {event}\n\n" for event in events).encode()
    contents = ((waiting_of, page.encode()), (served_models, models), (probe, stream))
    for read, content in contents:
        Connection.received = response(content)
        try:
            with mock.patch("http.client.HTTPConnection", Connection):
                read(server)
        except PeagleError:
            continue
    with mock.patch("peagle.bench.targets.served_models", return_value=("m",)):
        target_of_url(url)


CONFIG = {"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True,
          "synthetic_acceptance_rates": [0.9, 0.5, 0.2]}  # fmt: skip


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


_SMALL = replace(RESULT, rows=ROWS[:4:3])
RESULTS = (json.loads(json.dumps(_SMALL.document())), evidence_document(_SMALL))


def _result(data: bytes) -> None:
    result, _ = read_result(written("result.json", data))
    for rows in result.by_workload().values():
        summary_of(rows)


PARSERS = (
    Parser("bench-acceptance", _acceptance, [encoded(ACCEPTANCE)], UserError),
    Parser("bench-answer", _answer, ANSWERS, PeagleError),
    Parser("bench-prompts", _prompts, [FILE], UserError),
    Parser("bench-records", _records, [RECORDS], EngineError),
    Parser(
        "bench-server",
        _served,
        [(PAGE, encoded(MODELS), [json.dumps(USAGE), "[DONE]"], "http://h:80/v1")],
        PeagleError,
    ),
    Parser(
        "bench-setting",
        lambda text: setting_of_config(json.loads(text)),
        [json.dumps(CONFIG)],
        PeagleError,
        inputs=json_texts(CONFIG).filter(lambda text: _is_object(text)),
    ),
    Parser("bench-result", _result, [encoded(result) for result in RESULTS], UserError),
    Parser("bench-settings", lambda text: SweepRequest(text, ()).ks, ["k=none,1,3"], UserError),
    Parser(
        "bench-gpu",
        lambda name: catalog_name(name, ("H100", "L4", "L40S")),
        ["NVIDIA H100 80GB HBM3"],
    ),
    Parser("slo", parse_slo, ["ttft=0.5,itl=0.02"], UserError),
)
