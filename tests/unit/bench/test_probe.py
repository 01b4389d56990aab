"""What a bench asks first: servers that stream, that do not, that fail; and their metrics."""

from __future__ import annotations

import pytest

from peagle.bench.result import BenchWorkload
from peagle.bench.server import (
    NoStreaming,
    OpenAiServer,
    Probe,
    context_of,
    counters_of,
    models_in,
    probe,
    served_models,
    usage_in,
    waiting_in,
    waiting_of,
)
from peagle.bench.workloads import Tokens
from peagle.errors import EngineError, UserError
from peagle.protocol import Counters
from peagle.speed.models import Workload
from tests.support import raises_code
from tests.unit.bench.simulated import SimulatedTiming, simulated_server

FAST = SimulatedTiming(ttft=0.001, itl=0.001)
METRICS = """\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
vllm:num_requests_waiting{engine="0",model_name="a b"} 3.0
vllm:num_requests_waiting{engine="1",model_name="a b"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 12.0
"""


def server(base_url: str) -> OpenAiServer:
    return OpenAiServer(base_url, "simulated")


def test_words_are_counted_by_the_server() -> None:
    with simulated_server(FAST) as simulated:
        found = probe(server(simulated.base_url))

    # A word is a token there, and a template has four.
    assert found.tokens == Tokens(overhead=4.0, per_word=1.0)
    assert found.tokens.words(128) == 124
    assert found.fixed_length


def test_a_server_without_ignore_eos_gets_answers_of_natural_length() -> None:
    timing = SimulatedTiming(ttft=0.001, itl=0.001, accepts_ignore_eos=False)

    with simulated_server(timing) as simulated:
        assert not probe(server(simulated.base_url)).fixed_length


def test_a_chat_of_gpt_oss_is_not_forced_to_a_length() -> None:
    """Its answers have a format that ends; completions have none."""
    with simulated_server(FAST) as simulated:
        name = "openai/gpt-oss-20b"
        assert not probe(OpenAiServer(simulated.base_url, name)).fixed_length
        assert probe(OpenAiServer(simulated.base_url, name, chat=False)).fixed_length


def test_requests_above_the_context_are_refused() -> None:
    probed = Probe(Tokens(4.0, 1.0), True, 2048)
    probed.require_room(BenchWorkload("fits", Workload(1792, 256)))
    probed.require_room(BenchWorkload("mine", Workload(0, 256), ("a " * 1700,)))
    Probe(probed.tokens, True).require_room(BenchWorkload("unknown", Workload(9999, 256)))
    with raises_code("context-too-small", UserError) as refused:
        probed.require_room(BenchWorkload("mine", Workload(0, 256), ("a", "a " * 6000)))
    assert refused.value.message == (
        "mine: about 6,004 tokens of prompt and 256 of answer exceed the server's context of 2,048"
    )
    with raises_code("context-too-small", UserError) as refused:
        probed.require_room(BenchWorkload("long", Workload(1793, 256)))
    assert "--prompt-tokens" in str(refused.value.fix)


def test_the_context_is_that_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(content: bytes, status: int = 200) -> int | None:
        monkeypatch.setattr(OpenAiServer, "get", lambda *_: (status, content))
        return context_of(server("http://127.0.0.1:9/v1"))

    assert says(b'{"data": [{"id": "simulated", "max_model_len": 2048}, {"id": "b"}]}') == 2048
    for content in (b"{}", b"[]", b'{"data": [1]}', b'{"data": [{"id": "simulated"}]}'):
        assert says(content) is None
    assert says(b"{}", 404) is None


def test_a_server_that_sends_whole_answers_is_refused() -> None:
    with (
        simulated_server(SimulatedTiming(streams=False)) as simulated,
        raises_code("no-streaming", NoStreaming) as raised,
    ):
        probe(server(simulated.base_url))

    assert "answers with application/json" in raised.value.message


def test_a_stream_without_token_counts_is_refused() -> None:
    with raises_code("no-usage", NoStreaming):
        usage_in(['{"choices": []}', "[DONE]"], "it")


def test_a_server_that_fails_says_what_the_engine_says() -> None:
    timing = SimulatedTiming(fails_after=0)

    with simulated_server(timing) as simulated, raises_code("engine-failed", EngineError) as failed:
        probe(server(simulated.base_url))
    assert "EngineCore died" in failed.value.message


def test_without_a_server_the_url_is_named() -> None:
    with raises_code("no-answer", EngineError) as raised:
        probe(server("http://127.0.0.1:9/v1"))

    assert "127.0.0.1:9" in raised.value.message


def test_the_only_model_is_found() -> None:
    with simulated_server(FAST) as simulated:
        assert served_models(server(simulated.base_url)) == {"simulated": None}


def test_a_list_of_models_of_another_format_is_an_error() -> None:
    with pytest.raises(EngineError):
        models_in(b'{"data": [{}]}')


def test_counters_and_queue_come_from_the_metrics_page() -> None:
    with simulated_server(SimulatedTiming(metrics=METRICS)) as simulated:
        assert counters_of(server(simulated.base_url)) == Counters(10, 30, 12, (12,))
        assert waiting_of(server(simulated.base_url)) == 5.0


def test_a_page_without_the_gauge_tells_nothing() -> None:
    assert waiting_in("vllm:num_requests_running 1\n") is None
    assert waiting_in("vllm:num_requests_waiting many\n") is None


def test_a_server_without_metrics_has_no_counters() -> None:
    with simulated_server(FAST) as simulated:
        assert counters_of(server(simulated.base_url)) is None
