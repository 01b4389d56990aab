"""The environment of a container, the files that it writes, and the times in its log."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu.container import PAIRS, PairFolder, folder_sizes
from measurements.gpu.logs import start_facts
from peagle_serve.command import command


@pytest.mark.parametrize("pair", PAIRS)
def test_the_entrypoint_accepts_the_environment(pair: str, tmp_path: Path) -> None:
    folder = PairFolder(tmp_path, pair)
    folder.prepare()
    environment = folder.environment("collect", "1")
    argv = command(environment)
    values = dict(itertools.pairwise(argv))
    assert values["--model"] == str(tmp_path / pair / "ml" / "model" / "target")
    assert values["--load-format"] == "dummy"
    assert values["--worker-extension-cls"] == "measurements.gpu.extension.Probed"
    assert values["--max-model-len"] == "32768"
    root = Path(environment["PYTHONPATH"].split(os.pathsep)[0])
    assert (root / "measurements" / "gpu" / "extension.py").is_file(), "the engine imports it"
    head = json.loads(values["--speculative-config"])
    assert head["model"] == str(tmp_path / pair / "ml" / "model" / "drafter")
    assert head["parallel_drafting"] is True
    assert head["num_speculative_tokens"] == {"gpt-oss-20b": 7, "qwen3-coder-30b": 10}[pair]
    target = Path(values["--model"])
    assert (target / "tokenizer.json").is_file(), "the check for drafts sends text"


def test_a_cold_start_finds_no_files_of_the_previous_start(tmp_path: Path) -> None:
    folder = PairFolder(tmp_path, "tiny")
    folder.prepare()
    for written in folder.written.values():
        (written / "left").write_text("x")
    folder.artifacts.mkdir()
    (folder.artifacts / "kept.json").write_text("{}")
    folder.clear()
    assert all(list(written.iterdir()) == [] for written in folder.written.values())
    assert (folder.artifacts / "kept.json").is_file()


def test_folder_sizes_can_be_limited_to_new_files(tmp_path: Path) -> None:
    for name, moment in (("warm/key/vllm/a", 100), ("warm/key/vllm/b", 300), ("warm/key/c/d", 300)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
        os.utime(tmp_path / name, (moment, moment))
    assert folder_sizes(tmp_path, 3) == {"warm/key/vllm": 10, "warm/key/c": 5}
    assert folder_sizes(tmp_path, 3, since=200) == {"warm/key/vllm": 5, "warm/key/c": 5}
    assert folder_sizes(tmp_path, 3, since=400) == {}


def test_the_log_gives_the_duration_of_each_part() -> None:
    log: list[dict[str, Any]] = [
        {"time": "1", "message": "warm start", "event": "warm-start", "seconds": 0.4},
        {"time": "2", "message": "init engine (profile, create kv cache, warmup model) took 18.52 s"
         " (compilation: 3.1 s)"},
        {"time": "3", "message": "Graph capturing finished in 9 secs, took 1.63 GiB"},
        {"time": "4", "message": "Route: /v1/chat/completions/render, Methods: POST"},
        {"time": "5", "message": "healthy", "event": "healthy", "seconds": 41.3},
    ]  # fmt: skip
    facts = start_facts(log)
    assert facts["restore_seconds"] == 0.4
    assert facts["healthy_seconds"] == 41.3
    assert facts["engine"]["engine_start_seconds"] == 18.52
    assert facts["engine"]["compilation_seconds"] == 3.1
    assert facts["engine"]["graph_capture_seconds"] == 9.0
    assert len(facts["log"]) == 4
