"""Workloads by name, of given sizes and from a file; request bodies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from measurements.gpu import load as gpu_load
from peagle.bench.workloads import Tokens, find_workload, make_load, request_bodies
from peagle.errors import UserError
from peagle.speed.models import WORKLOADS, Workload
from tests.support import raises_code

TOKENS = Tokens(overhead=5.0, per_word=1.25)


def test_the_sizes_are_those_of_the_catalogues_measurements() -> None:
    measured = {
        one.name: Workload(one.prompt_tokens, one.output_tokens) for one in gpu_load.WORKLOADS
    }
    assert measured == WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_name_is_a_size(name: str) -> None:
    assert find_workload(name).size == WORKLOADS[name]


def test_other_sizes_have_another_name() -> None:
    found = find_workload("short-prompt", 64)

    assert (found.name, found.size) == ("short-prompt-64x400", Workload(64, 400))


def test_an_unknown_name_has_the_nearest_one_as_its_fix() -> None:
    with raises_code("unknown-workload", UserError) as raised:
        find_workload("long-promt")

    assert "long-prompt" in raised.value.fix


def test_a_workload_of_plan_names_the_options_of_bench() -> None:
    with raises_code("unknown-workload", UserError) as raised:
        find_workload("chat")

    assert "--prompt-tokens 4096 --output-tokens 256" in raised.value.fix


def test_prompts_of_a_file_are_sent_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "One"}\n{"messages": [{"role": "user", "content": "Two"}]}\n')
    workload = find_workload(str(file), output_tokens=16)

    phases = request_bodies(make_load(workload, 1), model="m", chat=True, tokens=TOKENS)

    assert [[body["messages"][0]["content"] for body in phase] for phase in phases] == [
        ["One"], ["Two", "One", "Two", "One"], ["Two", "One", "Two", "One"],
        ["Two", "One", "Two", "One"],
    ]  # fmt: skip
    assert workload.digest
    assert "ignore_eos" not in phases[0][0]


@pytest.mark.parametrize(
    "text",
    ["", '{"prompt": " "}\n',
     '{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}\n'],
)  # fmt: skip
def test_a_file_that_cannot_be_sent_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(text)

    with raises_code("prompts", UserError):
        find_workload(str(file))


def test_prompts_of_a_file_have_no_other_size(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "One"}\n')

    with raises_code("conflicting-options", UserError):
        find_workload(str(file), prompt_tokens=64)


def test_bodies_ask_for_streams_of_a_fixed_length_with_distinct_prompts() -> None:
    load = make_load(find_workload("short-prompt"), 4)

    phases = request_bodies(load, model="m", chat=False, tokens=TOKENS, draw=random.Random(1))

    assert [len(phase) for phase in phases] == [4, 8, 8, 8]
    bodies = [body for phase in phases for body in phase]
    assert len({body["prompt"][:30] for body in bodies}) == len(bodies)
    assert all(len(body["prompt"].split()) == TOKENS.words(128) for body in bodies)
    rest = {key: bodies[0][key] for key in bodies[0] if key != "prompt"}
    assert rest == {
        "model": "m", "max_tokens": 400, "temperature": 0.0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_a_repetition_has_at_least_as_many_requests_as_are_sent_at_a_time() -> None:
    assert make_load(find_workload("short-prompt"), 8, requests=2).requests == 8
    assert make_load(find_workload("short-prompt"), 1).requests == 4
