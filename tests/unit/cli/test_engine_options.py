"""What check, fit and verdict take is written once: as fields, options, keywords and argv."""

from typing import Any

import click
import pytest

from peagle.checks.report import CheckOptions
from peagle.cli.main import cli
from peagle.cli.plan_options import given_options
from peagle.fit.report import FitOptions
from peagle.options import EngineOptions, Options, arguments, read_flags, read_keywords
from peagle.planning.verdict import LOADS, VerdictOptions

KINDS: dict[str, type[EngineOptions]] = {
    "check": CheckOptions, "fit": FitOptions, "verdict": VerdictOptions,
}  # fmt: skip
VALUES: dict[type[EngineOptions], dict[str, Any]] = {
    CheckOptions: {
        "target": "./target", "drafter": "hf", "k": 3, "max_model_len": 4096, "concurrency": 2,
        "tensor_parallel_size": 2, "environment": {"A": "b"}, "settings": {"enable-lora": "true"},
        "on_cpu": True,
    },
    FitOptions: {
        "gpu_memory_gib": 80.0, "tensor_parallel_size": 4, "gpu_memory_utilization": 0.5,
        "concurrency": 16, "max_num_batched_tokens": 2048, "kv_cache_dtype": "fp8",
        "speculation": False, "text_only": True, "enforce_eager": True,
        "drafter_embeddings": "shared", "settings": {"block-size": "32"},
    },
    VerdictOptions: {
        "gpu": "H200", "vllm": "0.28.0", "tensor_parallel_size": 2, "workload": "chat",
        "prompt_tokens": 4096, "cached_prompt_tokens": 1024, "shared_prompt_tokens": 512,
        "output_tokens": 64, "loads": (1, 8),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_command_reads_the_argv_of_its_options(name: str) -> None:
    kind = KINDS[name]
    asked = kind(pair="tiny", **VALUES[kind])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    words = ["tiny", *arguments(asked)]
    parsed = command.make_context(name, words, parent=click.Context(cli)).params
    fields = {field: parsed[field] for field in (*kind.TAKES, "no_speculation") if field in parsed}
    options = given_options(fields)
    assert {key: value for key, value in options.items() if key in VALUES[kind]} == VALUES[kind]


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_command_takes_its_fields_and_no_others(kind: type[EngineOptions]) -> None:
    assert tuple(name for name, _ in read_flags(kind)) == kind.TAKES
    assert not any(flag.in_file for _, flag in read_flags(kind))
    keywords = read_keywords(kind)
    assert {*keywords.values()} == {"pair", *kind.TAKES}
    assert not {"ttl", "no_speculation", "target_checkpoint"} & keywords.keys()


@pytest.mark.parametrize(("kind", "keyword", "field"), [
    (Options, "set", "settings"),
    (Options, "k", "k"),
    (FitOptions, "max_num_seqs", "concurrency"),
    (FitOptions, "tp", "tensor_parallel_size"),
    (FitOptions, "tensor_parallel_size", "tensor_parallel_size"),
    (CheckOptions, "cpu", "on_cpu"),
    (VerdictOptions, "concurrency", "loads"),
])  # fmt: skip
def test_a_keyword_is_any_name_of_the_option(kind: type[Options], keyword: str, field: str) -> None:
    assert read_keywords(kind)[keyword] == field


def test_a_plan_keeps_its_keys_of_the_file() -> None:
    in_file = {name for name, flag in read_flags() if flag.in_file}
    assert {"shared_prompt_tokens", "subnets", "weights_by"} <= in_file
    assert not {"k", "tensor_parallel_size", "target"} & in_file
    assert arguments(Options(pair="tiny", shared_prompt_tokens=3, k=2)) == ["--k", "2"]


def test_a_verdict_without_loads_has_the_usual_ones() -> None:
    assert VerdictOptions(pair="tiny").loads == LOADS
    assert arguments(VerdictOptions(pair="tiny")) == []


@pytest.mark.parametrize(("parameters", "fields"), [
    ({"k": 0, "gpu": None, "text_only": False, "settings": {}, "loads": ()}, {"k": 0}),
    ({"no_speculation": True}, {"speculation": False}),
    ({"no_speculation": False, "compiled": True}, {"compiled": True}),
])  # fmt: skip
def test_what_was_not_typed_is_not_given(
    parameters: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert given_options(parameters) == fields
