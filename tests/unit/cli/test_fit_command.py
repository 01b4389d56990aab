"""``peagle fit``, as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peagle.errors import Refused, UserError
from tests.unit.cli.fitting import H200, answer, folder, peagle, shown


def test_a_pair_and_the_geometry_it_was_made_of_agree(tmp_path: Path) -> None:
    arguments = (*H200, "--max-model-len", "16384", "--max-num-seqs", "64", "--no-speculation")
    whole = tmp_path / "gemma"
    shutil.copytree(folder("gemma-4-31b"), whole)
    (whole / "preprocessor_config.json").write_text("{}")
    by_name = answer("gemma-4-31b", *arguments)
    by_folder = answer("--target", str(whole), *arguments)
    assert by_name["terms"] == by_folder["terms"]
    text = answer("gemma-4-31b", *arguments, "--text-only")
    assert by_name["weights_gib"] - text["weights_gib"] == pytest.approx(1.07, abs=0.01)


def test_a_folder_without_a_processor_is_calculated_for_text() -> None:
    """vLLM cannot take images with it; that is how the engine was measured."""
    arguments = ("--target", folder("gemma-4-31b"), *H200, "--max-model-len", "16384",
             "--max-num-seqs", "64", "--no-speculation")  # fmt: skip
    found, without_images = answer(*arguments), answer(*arguments, "--text-only")
    assert found["terms"] == without_images["terms"]
    assert "text-only-assumed" in {finding["code"] for finding in found["findings"]}
    assert "text-only-assumed" not in {finding["code"] for finding in without_images["findings"]}
    other = answer("--target", folder("gpt-oss-20b"), *H200)
    assert "text-only-assumed" not in {finding["code"] for finding in other["findings"]}


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


@pytest.mark.thorough
def test_what_does_not_fit_is_refused_with_what_would() -> None:
    result = peagle("gpt-oss-120b", "--instance-type", "ml.g6e.2xlarge", "--json")
    assert isinstance(result.exception, Refused)
    fit = json.loads(result.stdout)
    assert not fit["fits"]
    assert "GiB more GPU memory" in fit["refusal"]
    (instance,) = [item for item in fit["advice"] if item["knob"] == "instance-type"]
    assert instance["value"].startswith("ml.")
    assert "tp" not in {item["knob"] for item in fit["advice"]}, "it has one GPU"


@pytest.mark.parametrize(("vllm", "fits"), [("0.27.1", False), ("0.28.0", True)])
def test_drafts_of_many_requests_stop_older_vllm_only(vllm: str, fits: bool) -> None:
    many = ("--max-num-seqs", "1024", "--max-num-batched-tokens", "2048", "--k", "5")
    found = shown("qwen3-coder-30b", *H200, *many, "--vllm", vllm)
    assert found["fits"] == fits
    assert (
        "4,096 tokens of a step for 1,024 concurrent requests" in (found["refusal"] or "")
    ) != fits


def test_an_argument_of_vllm_that_has_no_option_here() -> None:
    tokens = answer("qwen3-8b", *H200)["kv_cache_tokens"]

    doubled = answer("qwen3-8b", *H200, "--set", "kv-cache-dtype=fp8")["kv_cache_tokens"]
    assert doubled == answer("qwen3-8b", *H200, "--kv-cache-dtype", "fp8")["kv_cache_tokens"]
    assert doubled > 1.9 * tokens
    decided = peagle("qwen3-8b", *H200, "--set", "max-num-seqs=4").exception
    assert isinstance(decided, UserError)
    assert decided.message == "--set max-num-seqs: the plan decides this argument"
    unknown = shown("qwen3-8b", *H200, "--set", "kv-cache-type=fp8")["findings"][0]
    assert unknown["code"] == "engine-argument"
    assert "did you mean kv-cache-dtype" in unknown["fix"]
