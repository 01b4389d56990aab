"""What a container is told of a pair, and what is seen of what it wrote."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.served import facts
from benchmarks.gpu.warm_artefacts import pack, unpack
from benchmarks.gpu.warm_places import PAIRS, Place, sizes
from serve.command import command
from serve.warm.manifest import read_manifest
from serve.warm.pack import pack as pack_caches
from serve.warm.subject import key_of
from serve.warm.unpack import unpack as unpack_caches


@pytest.mark.parametrize("pair", PAIRS)
def test_the_entrypoint_takes_what_it_is_told(pair: str, tmp_path: Path) -> None:
    place = Place(tmp_path, pair)
    place.prepare()

    argv = command(place.environment("collect", "1"))

    said = dict(itertools.pairwise(argv))
    assert said["--model"] == str(tmp_path / pair / "ml" / "model" / "target")
    assert said["--load-format"] == "dummy"
    assert said["--worker-extension-cls"] == "benchmarks.gpu.extension.Probed"
    assert said["--max-model-len"] == "32768"
    head = json.loads(said["--speculative-config"])
    assert head["model"] == str(tmp_path / pair / "ml" / "model" / "drafter")
    assert head["parallel_drafting"] is True
    assert head["num_speculative_tokens"] == {"gpt-oss-20b": 7, "qwen3-coder-30b": 10}[pair]
    target = Path(said["--model"])
    assert (target / "tokenizer.json").is_file(), "the proof of drafts sends text"


def test_a_cold_start_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    place = Place(tmp_path, "tiny")
    place.prepare()
    for folder in place.written.values():
        (folder / "left").write_text("x")
    place.artefacts.mkdir()
    (place.artefacts / "kept.json").write_text("{}")

    place.forget()

    assert all(list(folder.iterdir()) == [] for folder in place.written.values())
    assert (place.artefacts / "kept.json").is_file()


def test_sizes_tell_what_is_new(tmp_path: Path) -> None:
    for name, moment in (("warm/key/vllm/a", 100), ("warm/key/vllm/b", 300), ("warm/key/c/d", 300)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
        os.utime(tmp_path / name, (moment, moment))
    assert sizes(tmp_path, 3) == {"warm/key/vllm": 10, "warm/key/c": 5}
    assert sizes(tmp_path, 3, since=200) == {"warm/key/vllm": 5, "warm/key/c": 5}
    assert sizes(tmp_path, 3, since=400) == {}


def test_an_artefact_that_travelled_is_one_that_the_container_takes(tmp_path: Path) -> None:
    """Packed by the container, carried as pieces, unpacked by the container, times and all."""
    caches = tmp_path / "caches"
    kernel = caches / "triton" / "x" / "kernel.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"kernel" * 1000)
    os.utime(kernel, (1_700_000_000, 1_700_000_000))
    subject = {"format": 1, "image": ""}
    key = key_of(subject)
    place = Place(tmp_path / "first", "tiny")
    place.artefacts.mkdir(parents=True)
    packed = pack_caches(caches, place.artefacts / f"{key}.tar.gz", [])
    manifest = {**packed._asdict(), "format": 1, "key": key, "subject": subject, "made": "now",
                "seconds_cold": 60.0}  # fmt: skip
    (place.artefacts / f"{key}.json").write_text(json.dumps(manifest))

    pack(place, tmp_path / "kept")
    other = Place(tmp_path / "second", "tiny")
    unpack(other, tmp_path / "kept")

    found = read_manifest(other.artefacts / f"{key}.json")
    restored = tmp_path / "restored"
    restored.mkdir()
    unpack_caches(other.artefacts / f"{key}.tar.gz", found, restored)
    again = restored / "triton" / "x" / "kernel.cubin"
    assert again.read_bytes() == kernel.read_bytes()
    assert again.stat().st_mtime == 1_700_000_000
    assert found.seconds_cold == 60.0


def test_the_log_says_how_long_each_part_took() -> None:
    told: list[dict[str, Any]] = [
        {"time": "1", "message": "warm start: restored 12 files, 1.5 MB in 0.40 s (key a)"},
        {"time": "2", "message": "init engine (profile, create kv cache, warmup model) took 18.52 s"
         " (compilation: 3.1 s)"},
        {"time": "3", "message": "Graph capturing finished in 9 secs, took 1.63 GiB"},
        {"time": "4", "message": "Route: /v1/chat/completions/render, Methods: POST"},
        {"time": "5", "message": "the engine is healthy", "seconds": 41.3},
    ]  # fmt: skip
    found = facts(told)
    assert found["restore_seconds"] == 0.4
    assert found["healthy_seconds"] == 41.3
    assert found["engine"]["engine_start_seconds"] == 18.52
    assert found["engine"]["compilation_seconds"] == 3.1
    assert found["engine"]["graph_capture_seconds"] == 9.0
    assert len(found["log"]) == 4
