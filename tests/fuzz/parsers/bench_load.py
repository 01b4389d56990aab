"""What the load of a bench reads: aiperf's records, a server's metrics, models and streams."""

from __future__ import annotations

import json
from unittest import mock

from peagle.bench.aiperf import requests_in
from peagle.bench.server import models_in, usage_in, waiting_in
from peagle.bench.targets import setting_of_config, target_of_url
from peagle.errors import EngineError, PeagleError
from tests.fuzz.inputs import encoded, json_texts
from tests.fuzz.parser import Parser

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
RECORDS = b"".join(json.dumps(one).encode() + b"\n" for one in (RECORD, FAILED))


def _records(data: bytes) -> None:
    for one in requests_in(data.splitlines(keepends=True)):
        assert one.error or one.output_tokens
        assert one.repetition >= 0


PAGE = (
    'vllm:num_requests_waiting{engine="0"} 3.0\n'
    'vllm:spec_decode_num_drafts_total{engine="0"} 10.0\n'
)
MODELS = {"object": "list", "data": [{"id": "m"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def _served(given: tuple[str, bytes, list[str], str]) -> None:
    page, models, events, url = given
    waiting_in(page)
    for parse in (lambda: models_in(models), lambda: usage_in(events, "it")):
        try:
            parse()
        except PeagleError:
            continue
    with mock.patch("peagle.bench.targets.served_models", return_value=("m",)):
        target_of_url(url)


CONFIG = {"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True,
          "synthetic_acceptance_rates": [0.9, 0.5, 0.2]}  # fmt: skip


PARSERS = (
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
)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
