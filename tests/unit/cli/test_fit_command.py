"""``peagle fit``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from toolkit.cli.fit_view import KNOBS, MEANINGS
from toolkit.cli.main import cli
from toolkit.errors import CheckpointError, NotFound, Refused, UserError

GEOMETRY = Path(__file__).parents[2] / "geometry"
H200 = ("--gpu-memory-gib", "139.8")
KEYS = ("weights_gib", "drafter_gib", "kv_cache_gib", "kv_cache_tokens", "max_concurrency", "terms")


def peagle(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fit", *arguments])


def answer(*arguments: str) -> Any:
    result = peagle(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def folder(name: str, part: str = "target") -> str:
    return str(GEOMETRY / name / part)


def test_a_pair_by_its_name() -> None:
    fit = answer("gpt-oss-20b", *H200, "--max-num-seqs", "128", "--max-model-len", "32768")
    assert fit["pair"] == "openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE"
    assert all(key in fit for key in KEYS)
    assert fit["fits"]
    assert 2_100_000 < fit["kv_cache_tokens"] < 2_500_000
    assert fit["settings"]["k"] == 7, "the card's"
    assert fit["settings"]["max_num_batched_tokens"] == 8192, "what vllm serve takes there"
    assert set(fit["terms"]) <= set(MEANINGS)
    without = fit["without_speculation"]
    assert without["max_concurrency"] > fit["max_concurrency"]
    assert fit["advice"] == []


def test_two_folders_that_hold_a_config_only() -> None:
    places = ("--target", folder("gpt-oss-20b"), "--drafter", folder("gpt-oss-20b", "p-eagle"))
    own = answer(*places, *H200, "--k", "7", "--drafter-embeddings", "own")
    shared = answer(*places, *H200, "--k", "7", "--drafter-embeddings", "shared")
    assert own["drafter_gib"] - shared["drafter_gib"] == pytest.approx(2.16, abs=0.02)
    assert own["settings"]["max_model_len"] == 131072, "all that the model has"
    named = ("gpt-oss-20b", *H200, "--drafter-embeddings", "shared", "--max-num-seqs", "128")
    assert answer(*named)["drafter_gib"] == pytest.approx(shared["drafter_gib"], abs=0.1)
    alone = answer("--target", folder("gpt-oss-20b"), *H200)
    assert (alone["drafter_gib"], alone["without_speculation"]) == (0, None)


def test_a_pair_and_the_geometry_it_was_made_of_agree() -> None:
    asked = (*H200, "--max-model-len", "16384", "--max-num-seqs", "64", "--no-speculation")
    by_name = answer("gemma-4-31b", *asked)
    by_folder = answer("--target", folder("gemma-4-31b"), *asked)
    assert by_name["terms"] == by_folder["terms"]
    text = answer("gemma-4-31b", *asked, "--text-only")
    assert by_name["weights_gib"] - text["weights_gib"] == pytest.approx(1.07, abs=0.01)


def test_every_flag_counts() -> None:
    base = ("qwen3-coder-30b", *H200, "--max-num-seqs", "128")
    plain = answer(*base)["kv_cache_tokens"]
    changes: list[tuple[tuple[str, ...], bool]] = [
        (("--gpu-memory-utilization", "0.8"), False),
        (("--max-num-seqs", "700"), False),
        (("--max-num-batched-tokens", "32768"), False),
        (("--kv-cache-dtype", "fp8"), True),
        (("--no-speculation",), True),
        (("--enforce-eager",), True),
        (("--compiled",), True),
        (("--tp", "2"), True),
        (("--vllm", "0.20.2"), True),
    ]
    for change, more in changes:
        tokens = answer(*base, *change)["kv_cache_tokens"]
        assert (tokens > plain) == more, change
        assert tokens != plain, change
    assert answer(*base, "--k", "3")["terms"] != answer(*base, "--k", "6")["terms"]


def test_an_instance_type_brings_its_gpus() -> None:
    fit = answer("gpt-oss-120b", "--instance-type", "ml.g6e.12xlarge")
    assert (fit["gpu"], fit["gpu_count"]) == ("L40S", 4)
    assert fit["tensor_parallel_size"] > 1, "as few of them as fit"
    assert fit["terms"]["kept_by_driver"] > 0


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    result = peagle("gpt-oss-120b", "--instance-type", "ml.g6e.2xlarge", "--json")
    assert isinstance(result.exception, Refused)
    fit = json.loads(result.stdout)
    assert not fit["fits"]
    assert "GiB are missing" in fit["refusal"]
    assert {item["knob"] for item in fit["advice"]} <= set(KNOBS)
    (instance,) = [item for item in fit["advice"] if item["knob"] == "instance-type"]
    assert instance["value"].startswith("ml.")
    assert "tp" not in {item["knob"] for item in fit["advice"]}, "it has one GPU"


def test_people_get_a_picture_and_plain_words() -> None:
    result = peagle("gpt-oss-20b", *H200, "--max-num-seqs", "128")
    assert result.exit_code == 0
    for words in ("fits: the cache holds", "speculation takes", "target", "█", "kv cache"):
        assert words in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120
    refused = peagle("gpt-oss-120b", "--gpu-memory-gib", "48", "--max-num-seqs", "8")
    assert "does not fit" in refused.stdout
    assert "Any one of these makes it fit" in refused.stdout


def test_help_has_an_example() -> None:
    assert "Example: peagle fit" in peagle("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (("gpt-oss-20b",), UserError, "either --gpu-memory-gib or --instance-type"),
        (
            ("gpt-oss-20b", *H200, "--instance-type", "ml.g6.xlarge"),
            UserError,
            "either --gpu-memory-gib or --instance-type",
        ),
        (H200, UserError, "name a pair"),
        (("gpt-os-20b", *H200), NotFound, "gpt-oss-20b"),
        (("gpt-oss-20b", "--instance-type", "ml.g6.xlarg"), NotFound, "ml.g6.xlarge"),
        (("gpt-oss-20b", *H200, "--tp", "3"), UserError, "1, 2, 4, 8"),
        (
            ("gpt-oss-20b", "--instance-type", "ml.g6.xlarge", "--tp", "2"),
            UserError,
            "has 1 GPUs, fewer than --tp 2",
        ),
        (("gpt-oss-20b", *H200, "--max-model-len", "200000"), UserError, "use at most 131072"),
        (("gpt-oss-20b", *H200, "--vllm", "latest"), UserError, "vLLM version"),
        (("--target", "./nowhere", *H200), UserError, "nowhere"),
    ],
)
def test_wrong_use_says_what_to_do(
    arguments: tuple[str, ...], kind: type[UserError], says: str
) -> None:
    result = peagle(*arguments)
    assert isinstance(result.exception, kind)
    assert says in str(result.exception)


def test_a_damaged_config_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": "many"}')
    result = peagle("--target", str(tmp_path), *H200)
    assert isinstance(result.exception, CheckpointError)
    assert "hidden_size" in str(result.exception)


def test_draftless_methods_take_no_weights() -> None:
    fit = answer("gpt-oss-20b+ngram", *H200, "--max-num-seqs", "64")
    assert fit["drafter_gib"] == 0
    assert fit["settings"]["k"] == 5
    assert fit["without_speculation"]["max_concurrency"] > 0
