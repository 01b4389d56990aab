"""Prompts of a file, workloads by name and of given sizes, and request bodies."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu import load as gpu_load
from peagle.bench.workloads import (
    find_workload,
    make_loads,
    parse_prompts,
    read_prompts,
    request_bodies,
)
from peagle.errors import UserError
from peagle.speed.models import WORKLOADS, Workload
from tests.support import raises_code

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
    assert (by_domain, prompts.ignored) == ({"code": [1, 5], "chat": [3]}, ("id",))
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


def test_the_sizes_are_those_of_the_catalogues_measurements() -> None:
    sizes = {load.name: Workload(load.prompt_tokens, load.output_tokens)
             for load in gpu_load.WORKLOADS}  # fmt: skip
    assert {name: sizes[name] for name in WORKLOADS} == WORKLOADS
    assert {name: find_workload(name).size for name in WORKLOADS} == WORKLOADS
    sized = find_workload("short-prompt", 64)
    assert (sized.name, sized.size) == ("short-prompt-64x400", Workload(64, 400))
    for unknown, fix in (
        ("long-promt", "long-prompt"),
        ("chat", "--prompt-tokens 4096 --output-tokens 256"),
    ):
        with raises_code("unknown-workload", UserError) as raised:
            find_workload(unknown)
        assert fix in raised.value.fix


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
        "stream_options": {"include_usage": True},
    }  # fmt: skip
