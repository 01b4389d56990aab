"""The bundled catalogue: it loads, and values with two sources agree."""

from __future__ import annotations

import gzip
import json
import struct
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.evidence import load_evidence
from peagle.catalog.loading import check_catalog
from peagle.catalog.schema import Drafter, Target, kv_bytes
from peagle.catalog.tables import Instance
from peagle.data import data_folder
from peagle.findings import errors
from peagle.planning import Options, make_plan
from peagle.vllm.versions import in_range
from tests.support import (
    bundled_catalog,
)

with bundled_catalog():
    CATALOG = load_catalog()
    EVIDENCE = load_evidence()
    TINY = data_folder("model_catalog") / "peagle" / "tiny"


FIRST_CHECKED = date(2026, 11, 20)
"""The date of the first version of the table, from moto and botocore."""
TARGETS = list(CATALOG.targets.values())
DRAFTERS = [(target, drafter) for target in TARGETS for drafter in target.drafters]
DRAFTER_IDS = [f"{target.short_name}+{drafter.name}" for target, drafter in DRAFTERS]


def drafter(pair: str) -> Drafter:
    return dict(zip(DRAFTER_IDS, (found for _, found in DRAFTERS), strict=True))[pair]


@pytest.mark.thorough
def test_the_bundled_catalogue_has_no_problems() -> None:
    with bundled_catalog():
        files, problems = check_catalog()
    assert problems == []
    assert len(files) >= len(TARGETS) + 2


def test_it_has_the_required_targets() -> None:
    assert {target.short_name: target.id for target in TARGETS} == {
        "tiny": "peagle/tiny",
        "gpt-oss-20b": "openai/gpt-oss-20b",
        "gpt-oss-120b": "openai/gpt-oss-120b",
        "qwen3-coder-30b": "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "gemma-4-31b": "google/gemma-4-31B-it",
        "qwen3-8b": "Qwen/Qwen3-8B",
    }


@pytest.mark.parametrize(
    ("target_id", "per_token", "per_token_in_window"),
    [
        ("openai/gpt-oss-20b", 24_576, 49_152),
        ("openai/gpt-oss-120b", 36_864, 73_728),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 98_304, 98_304),
        ("google/gemma-4-31B-it", 81_920, 81_920 + 819_200),
    ],
)
def test_cache_bytes_of_a_token(target_id: str, per_token: int, per_token_in_window: int) -> None:
    groups = CATALOG.targets[target_id].architecture.attention
    assert kv_bytes(groups, 4097) - kv_bytes(groups, 4096) == per_token
    assert kv_bytes(groups, 1) == per_token_in_window
    assert kv_bytes(groups, 4097, element_bytes=1) * 2 == kv_bytes(groups, 4097)


def test_the_values_of_heads_equal_the_reference() -> None:
    facts = {
        name: (head.k_trained, head.k_recommended, head.min_vllm, head.hidden_layers)
        for name, head in zip(DRAFTER_IDS, (found for _, found in DRAFTERS), strict=True)
        if head.parallel_drafting and head.weights and head.weights.startswith("amazon/")
    }
    assert facts == {
        "gpt-oss-120b+p-eagle": (8, 5, "0.16.0", 4),
        "gpt-oss-120b+p-eagle-long": (8, 5, "0.16.0", 4),
        "gpt-oss-20b+p-eagle": (10, 7, "0.18.0", 4),
        "gpt-oss-20b+p-eagle-long": (10, 7, "0.18.0", 4),
        "qwen3-coder-30b+p-eagle": (18, 10, "0.16.0", 4),
        "qwen3-coder-30b+p-eagle-long": (18, 10, "0.16.0", 4),
    }


def test_the_kv_group_rule_applies_to_gpt_oss_20b_and_not_to_120b() -> None:
    """vLLM adds the drafter's layers to the full ones, and allows at most 1.25 times as many as
    sliding ones below 0.18.0, 1.5 times from there on."""
    for name in ("gpt-oss-20b", "gpt-oss-120b"):
        target = next(t for t in TARGETS if t.short_name == name)
        head = drafter(f"{name}+p-eagle")
        layers = {group.kind: group.layers for group in target.architecture.attention}
        ratio = (layers["full"] + (head.hidden_layers or 0)) / layers["sliding"]
        affected = [p for p in head.problems if p.code == "kv-group-rule" and p.vllm]
        assert any(in_range("0.17.1", p.vllm or "") for p in affected) == (ratio > 1.25)
        assert not any(in_range("0.18.0", p.vllm or "") for p in affected)
        assert ratio <= 1.5


@pytest.mark.parametrize(("target", "head"), DRAFTERS, ids=DRAFTER_IDS)
def test_no_pair_has_a_known_error_on_the_default_runtime(target: Target, head: Drafter) -> None:
    default = CATALOG.runtimes.default
    hits = [p for p in head.problems if p.vllm is None or in_range(default, p.vllm)]
    assert [problem.code for problem in hits if problem.level == "error"] == []


@pytest.fixture(scope="module")
def ec2_types() -> dict[str, Any]:
    packed = files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    types: dict[str, Any] = json.loads(gzip.decompress(packed))
    return types


@pytest.mark.parametrize("instance", CATALOG.instances.instances, ids=lambda i: i.type)
def test_instances_equal_those_of_ec2(instance: Instance, ec2_types: dict[str, Any]) -> None:
    """A type that moto does not have is from AWS, by a refresh."""
    facts = ec2_types.get(instance.type.removeprefix("ml."))
    if facts is None:
        assert CATALOG.instances.checked > FIRST_CHECKED
        return
    (gpu,) = facts["GpuInfo"]["Gpus"]
    assert instance.gpu_count == gpu["Count"]
    assert instance.gpu_memory_mib == gpu["MemoryInfo"]["SizeInMiB"]
    assert instance.vcpus == facts["VCpuInfo"]["DefaultVCpus"]
    assert instance.memory_gib * 1024 == facts["MemoryInfo"]["SizeInMiB"]
    assert instance.nvme_gb == facts["InstanceStorageInfo"]["TotalSizeInGB"]


TINY_TARGET = CATALOG.targets["peagle/tiny"]
needs_tiny = pytest.mark.skipif(
    not (TINY / "target" / "model.safetensors").is_file(), reason="peagle/tiny is not trained"
)


def safetensors_header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def tensor_bytes(folder: Path) -> int:
    tensors = safetensors_header(folder / "model.safetensors").values()
    return sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors)


@needs_tiny
def test_the_values_of_tiny_equal_its_files() -> None:
    config = json.loads((TINY / "target" / "config.json").read_text())
    shape = TINY_TARGET.architecture
    (group,) = shape.attention
    assert TINY_TARGET.weight_bytes == tensor_bytes(TINY / "target")
    assert [shape.class_name] == config["architectures"]
    assert shape.hidden_size == config["hidden_size"]
    assert shape.layers == config["num_hidden_layers"]
    assert shape.query_heads == config["num_attention_heads"]
    assert group.kv_heads == config["num_key_value_heads"]
    assert group.head_dim == config["head_dim"]
    assert shape.vocab_size == config["vocab_size"]
    assert shape.intermediate_size == config["intermediate_size"]
    assert shape.max_positions == config["max_position_embeddings"]
    assert shape.tied_embeddings == config["tie_word_embeddings"]


@needs_tiny
@pytest.mark.parametrize("name", ["p-eagle", "eagle3"])
def test_the_heads_of_tiny_equal_their_files(name: str) -> None:
    head = drafter(f"tiny+{name}")
    config = json.loads((TINY / name / "config.json").read_text())
    tensors = safetensors_header(TINY / name / "model.safetensors")
    assert head.hidden_layers == config["num_hidden_layers"]
    assert head.max_positions == config["max_position_embeddings"]
    assert head.own_embeddings == ("embed_tokens.weight" in tensors)
    assert head.weight_bytes == tensor_bytes(TINY / name)
    assert head.parallel_drafting == ("mask_hidden" in tensors)


SETTING = ("drafter", "k", "concurrency", "prompt_tokens", "output_tokens")


with bundled_catalog():  # the frozen one has no raw rows
    BUNDLED = data_folder("model_catalog") / "evidence"
WITH_RAW = [
    path
    for path in BUNDLED.glob("*.json")
    if {"raw", "speeds"} <= json.loads(path.read_bytes()).keys()
]


@pytest.mark.parametrize("path", WITH_RAW, ids=lambda path: path.stem)
def test_speeds_are_those_of_the_raw_repetitions(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    tries: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in document["raw"]:
        tries.setdefault(tuple(row.get(key) for key in SETTING), []).extend(row.get("tries", []))
    for row in document["speeds"] if document["raw"] else ():
        of_row = tries[tuple(row.get(key) for key in SETTING)]
        for key in ("output_tokens_per_second", "acceptance_length"):
            measured = [each[key] for each in of_row if each.get(key) is not None]
            if measured and row.get(key) is not None:
                assert min(measured) * 0.999 <= row[key] <= max(measured) * 1.001


# Every pair and target of the catalogue that ships has a plan.
with bundled_catalog():
    CATALOG = load_catalog()


PAIRS = [
    f"{target.short_name}+{drafter.name}"
    for target in CATALOG.targets.values()
    for drafter in target.drafters
]


@pytest.mark.parametrize("pair", PAIRS)
def test_every_bundled_pair_has_a_plan_without_errors(pair: str) -> None:
    made = make_plan(Options(pair=pair), CATALOG)
    assert errors(made.findings) == []
    assert made.fit.fits
    assert made.price_per_hour_usd is not None
    assert made.speculation is not None


@pytest.mark.parametrize("target", [target.short_name for target in CATALOG.targets.values()])
def test_every_bundled_target_can_be_served_alone(target: str) -> None:
    made = make_plan(Options(pair=target, speculation=False), CATALOG)
    assert errors(made.findings) == []
    assert made.drafter is None


"""Changes by a refresh: other prices, a removed instance type, other images."""
