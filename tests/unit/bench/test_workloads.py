"""Prompts of a file, workloads by name and of given sizes, and request bodies."""

import hashlib
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.targets import OpenAiServer, Probe, PromptRefused, fetch_counters, probe
from peagle.bench.workloads import (
    find_workload,
    make_loads,
    parse_prompts,
    read_prompts,
    request_bodies,
)
from peagle.errors import EngineError, PeagleError, UserError
from peagle.protocol import Counters
from peagle.workload import Workload
from tests.support import raises_code
from tests.unit.answers import INVALID
from tests.unit.bench.simulated import SimulatedTiming, simulated_server
from tests.unit.local.test_hostile_engine import OK, answering

USER = {"role": "user", "content": "Hi"}


def lines(*documents: Any) -> bytes:
    return "\n".join(json.dumps(document) for document in documents).encode()


def test_prompts_and_chats_of_several_domains_are_read(tmp_path: Path) -> None:
    data = lines(
        {"prompt": "def f(", "domain": "code", "max_tokens": 7, "id": 3},
        {"messages": [USER], "domain": " chat "},
        {"prompt": "import os", "domain": "code"},
    )
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n\r\n"))
    prompts = read_prompts(file)
    assert prompts.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    by_domain = {name: [prompt.line for prompt in of] for name, of in prompts.domains.items()}
    assert by_domain == {"code": [1, 5], "chat": [3]}
    code, chat, _ = prompts.prompts
    common = {"max_tokens": 7, "temperature": 0.0}
    assert code.body(chat=False, max_tokens=99) == {"prompt": "def f(", **common}
    asked = {"messages": [{"role": "user", "content": "def f("}]}
    assert code.body(chat=True, max_tokens=99) == {**asked, **common}
    assert chat.body(chat=False, max_tokens=99, temperature=0.5) == {
        "messages": [USER], "max_tokens": 99, "temperature": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"", "p "), (b"\n \n", "p "), (b"{", "p, line 1: "),
        (b'{"prompt": "a"}\nprompt', "p, line 2: "),
        (b'{"prompt": "a"}\n\xff\xfe', "p, line 2: "),
        (b'{"prompt": "\\ud800"}', "p, line 1: "), (b"[" * 10_000, "p, line 1: "),
        (b"null", "p, line 1: "), (b'[\n{"prompt": "a"}\n]', "p, line 1: "),
        (lines({"prompt": "a"}, {"domain": "b"}), "p, line 2: has no text"),
        (lines({"prompt": "a", "messages": [USER]}), "p, line 1: needs either"),
        (lines({"prompt": " \n"}), "p, line 1: has no text"),
        (lines({"prompt": ["a"]}), "p, line 1: prompt: "),
        (lines({"messages": []}), "p, line 1: has no text"),
        (lines({"messages": ["Hi"]}), "p, line 1: messages"),
        (lines({"messages": [{"role": "user", "content": ""}]}), "p, line 1: has no text"),
        (lines({"prompt": "a", "domain": " "}), "p, line 1: domain"),
        (lines({"prompt": "a", "domain": "a\x1bb"}), "p, line 1: domain"),
        (lines({"prompt": "a", "max_tokens": 0}), "p, line 1: max_tokens: "),
        (lines({"prompt": "a", "max_tokens": True}), "p, line 1: max_tokens: "),
    ],
)  # fmt: skip
def test_every_other_file_is_one_error_with_its_line(data: bytes, where: str) -> None:
    with raises_code("prompts", UserError) as raised:
        parse_prompts(data, "p")
    assert raised.value.message.startswith(where)
    assert raised.value.fix


def test_a_size_can_be_changed() -> None:
    sized = find_workload("short-prompt", 64)
    assert (sized.name, sized.size) == ("short-prompt-64x400", Workload(64, 400))
    with raises_code("unknown-workload", UserError) as raised:
        find_workload("long-promt")
    assert "long-prompt" in raised.value.fix


def test_prompts_of_a_file_are_sent_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "One"}\n{"messages": [{"role": "user", "content": "Two"}]}\n')
    (load,) = make_loads(str(file), [1], output_tokens=16)
    phases = request_bodies(load, model="m", chat=True, words=98)
    assert [[body["messages"][0]["content"] for body in phase] for phase in phases] == [
        ["One"], *[["Two", "One", "Two", "One"]] * 3,
    ]  # fmt: skip
    assert load.workload.digest
    assert "ignore_eos" not in phases[0][0]
    with raises_code("conflicting-options", UserError):
        find_workload(str(file), prompt_tokens=64)
    file.write_bytes(lines({"messages": [{"role": "system", "content": "x"}, USER]}))
    with raises_code("prompts", UserError):
        find_workload(str(file))
    for missing in (tmp_path, tmp_path / "missing.jsonl"):
        with raises_code("prompts", UserError):
            read_prompts(missing)


def test_bodies_ask_for_streams_of_a_fixed_length_with_distinct_prompts() -> None:
    assert [load.requests for load in make_loads("short-prompt", [1, 8], requests=2)] == [2, 8]
    assert [load.requests for load in make_loads("short-prompt", [1, 8])] == [4, 16]
    (load,) = make_loads("short-prompt", [4])
    phases = request_bodies(load, model="m", chat=False, words=98, draw=random.Random(1))
    assert [len(phase) for phase in phases] == [4, 8, 8, 8]
    bodies = [body for phase in phases for body in phase]
    assert len({body["prompt"][:30] for body in bodies}) == len(bodies)
    assert all(len(body["prompt"].split()) == 98 for body in bodies)
    rest = {key: bodies[0][key] for key in bodies[0] if key != "prompt"}
    assert rest == {
        "model": "m", "max_tokens": 400, "temperature": 0.0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True}, "messages": [],
    }  # fmt: skip


@pytest.mark.parametrize(("chat", "name", "turns"), [
    (True, "conversation", 3), (False, "chat", 5), (True, "agent", 2), (False, "rag", 1),
])  # fmt: skip
def test_a_turn_repeats_the_one_before_and_adds_what_is_new(
    chat: bool, name: str, turns: int
) -> None:
    (load,) = make_loads(name, [2], 1, turns=turns if turns > 1 else None)
    size = load.workload.size
    probed = Probe(0.0, 1.0, True)
    phases = request_bodies(
        load, model="m", chat=chat, words=size.prompt_tokens,
        added_words=probed.added_words(size.new_prompt_tokens), spare=3,
    )  # fmt: skip
    sent = max(2 * turns, 4) if turns == 1 else 2 * turns
    assert [len(phase) for phase in phases] == [2 * turns, sent, 3 * turns]
    texts = [
        " ".join(message["content"] for message in body["messages"]) if chat else body["prompt"]
        for body in phases[1][:turns]
    ]
    measured = [text.split() for text in texts[1:] or texts]
    mean = sum(map(len, measured)) / len(measured)
    assert mean == pytest.approx(size.prompt_tokens, abs=2)
    for before, after in pairwise(text.split() for text in texts):
        assert after[: len(before)] == before
        assert len(after) - len(before) == size.new_prompt_tokens
    first, second = (phases[0][n * turns] for n in range(2))
    starts = [
        (body["messages"][0]["content"] if chat else body["prompt"]).split()
        for body in (first, second)
    ]
    same = next(at for at, (a, b) in enumerate(zip(*starts, strict=False)) if a != b)
    assert same == size.shared_prompt_tokens


# A server with OpenAI's protocol: its answers and errors, and what a bench asks it first.
GONE = "http://127.0.0.1:9/v1"
METRICS = """\
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 12.0
"""


def server(base_url: str, model: str = "simulated", chat: bool = True) -> OpenAiServer:
    return OpenAiServer(base_url, model, log=("peagle", "logs", "x"), chat=chat)


def ask(port: int) -> dict[str, object]:
    return server(f"http://127.0.0.1:{port}/v1").ask({"prompt": "Hi", "max_tokens": 1})


@pytest.mark.parametrize(("status", "code", "kind"), [
    (400, "prompt-refused", PromptRefused),
    (413, "prompt-refused", PromptRefused),
    (401, "server-refuses", UserError),
    (404, "server-refuses", UserError),
    (429, "engine-failed", EngineError),
    (500, "engine-failed", EngineError),
])  # fmt: skip
def test_every_status_has_its_error(status: int, code: str, kind: type[PeagleError]) -> None:
    refusal = f'HTTP/1.1 {status} -\r\n\r\n{{"error": {{"message": "it says no"}}}}'.encode()
    with answering(refusal) as port, raises_code(code, kind) as raised:
        ask(port)
    assert raised.value.fix


def test_an_answer_is_returned_and_none_is_an_error() -> None:
    with answering(OK + b'\r\n{"choices": []}') as port:
        assert ask(port) == {"choices": []}
    for cut_off in (b"", b"HTTP/1.1", OK + b"Content-Length: 99\r\n\r\n{"):
        with answering(cut_off) as port, raises_code("no-answer", EngineError) as raised:
            ask(port)
        assert raised.value.command == ("peagle", "logs", "x")
    for url in (GONE, "http://a:99999/v1"):
        with raises_code("no-answer", EngineError):
            server(url).ask({"prompt": "Hi"})
    for name in ("no JSON", "no UTF-8", "cut short", "NaN", "a list", "nothing"):
        with (
            answering(OK + b"\r\n" + INVALID[name]) as port,
            raises_code("invalid-response", EngineError),
        ):
            ask(port)
    assert "secret" not in repr(OpenAiServer(GONE, "m", "secret"))


def test_words_are_counted_by_the_server_and_lengths_are_fixed_where_it_allows() -> None:
    fast = SimulatedTiming(ttft=0.001, itl=0.001, metrics=METRICS)
    with simulated_server(fast) as simulated:
        url = simulated.base_url
        probed = probe(server(url))
        # Answers of gpt-oss have a format that ends; completions have none.
        assert not probe(server(url, "openai/gpt-oss-20b")).fixed_length
        assert probe(server(url, "openai/gpt-oss-20b", chat=False)).fixed_length
        assert fetch_counters(server(url)) == Counters(10, 30, 12, (12,))
    assert probed == Probe(4.0, 1.0, True), "a template has four tokens"
    assert probed.words(128) == 124
    for page in ("", "vllm:num_requests_running 1\n"):
        timing = SimulatedTiming(ttft=0.001, itl=0.001, accepts_ignore_eos=False, metrics=page)
        with simulated_server(timing) as simulated:
            assert (fetch_counters(server(simulated.base_url)) is None) == (page == "")
            assert not probe(server(simulated.base_url)).fixed_length
