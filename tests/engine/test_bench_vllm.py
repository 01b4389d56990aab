"""`peagle bench --acceptance` and `--lossless` with real vLLM: the tiny pair, a damaged head."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.acceptance import compute_rates, read_acceptance
from peagle.data import data_folder
from peagle.engine.machine import Engine
from peagle.text import plain
from tests.support import Peagle

pytestmark = pytest.mark.engine
GOOD, DAMAGED = "bench-good", "bench-damaged"
TINY = data_folder("model_catalog") / "peagle" / "tiny"


@pytest.fixture(scope="module", autouse=True)
def own_place(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home for this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_HOME", str(tmp_path_factory.mktemp("bench")))
        yield


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Held-out prompts of two kinds, in lines of a file; one is longer than the context."""
    held_out = json.loads((TINY / "prompts.json").read_text())
    lines = [
        {"domain": kind, "prompt": entry["prompt"], "max_tokens": 48}
        for kind in ("chat", "completion")
        for entry in [entry for entry in held_out if entry["kind"] == kind][:5]
    ]
    lines.append({"domain": "chat", "prompt": "and so on " * 2000})
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture(scope="module")
def good(peagle: Peagle, prompts: Path) -> Iterator[dict[str, Any]]:
    """What the bench of the trained head prints: both measurements in one command."""
    saved = prompts.with_name("acceptance.json")
    try:
        assert peagle("local", "up", "tiny", "--name", GOOD).returncode == 0
        done = peagle("bench", GOOD, "--acceptance", str(prompts), "--lossless",
                      "--save-acceptance", str(saved), "--json")  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "line 11: the engine refuses the prompt" in done.stderr
        yield {**json.loads(done.stdout), "saved": saved}
    finally:
        peagle("local", "down", "--all", "--now")


def damaged_head(folder: Path) -> Path:
    """The head with one matrix reversed: it drafts worse, and above the floor of the proof."""
    head = Path(shutil.copytree(TINY / "p-eagle", folder / "head"))
    file = head / "model.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    matrix = json.loads(content[8 : 8 + length])["layers.1.mlp.down_proj.weight"]
    assert matrix["dtype"] == "BF16"
    start, end = (8 + length + offset for offset in matrix["data_offsets"])
    values = [content[at : at + 2] for at in range(start, end, 2)]
    file.write_bytes(content[:start] + b"".join(reversed(values)) + content[end:])
    return head


def test_the_acceptance_of_each_domain_is_measured(good: dict[str, Any]) -> None:
    acceptance = good["acceptance"]
    assert [domain["domain"] for domain in acceptance["domains"]] == ["chat", "completion"]
    assert [domain["prompts"] for domain in acceptance["domains"]] == [5, 5]
    assert [domain["line"] for domain in acceptance["refused"]] == [11]
    assert acceptance["k"] == 7
    assert acceptance["total"]["acceptance"]["drafts"] > 100
    assert 1.5 < acceptance["total"]["acceptance"]["length"] < 4.5
    for domain in (acceptance["total"], *acceptance["domains"]):
        rates = domain["acceptance"]["per_position"]
        assert rates == sorted(rates, reverse=True)
        assert domain["acceptance"]["length"] == pytest.approx(1 + sum(rates))
        assert (
            domain["interval"]["low"] < domain["acceptance"]["length"] < domain["interval"]["high"]
        )


def test_a_step_of_the_engine_outputs_what_the_acceptance_says(good: dict[str, Any]) -> None:
    """Every output token is of a step, but the first of each answer: the counters agree."""
    total = good["acceptance"]["total"]
    steps, answers = total["acceptance"]["drafts"], total["prompts"]
    outputs = total["output_tokens"] - answers
    drafted = steps * total["acceptance"]["length"]
    assert outputs <= drafted <= outputs + answers * good["acceptance"]["k"]


def test_the_file_gives_the_rates_to_impose(good: dict[str, Any]) -> None:
    acceptance = read_acceptance(good["saved"])
    assert plain(acceptance) == good["acceptance"]
    assert len(compute_rates(acceptance, 3, "chat")) == 3


def test_greedy_answers_are_those_of_the_target_alone(good: dict[str, Any]) -> None:
    comparison = good["lossless"]
    assert comparison["passed"], comparison["differences"]
    assert comparison["prompts"] == 10
    assert comparison["tokens"] > 300
    assert all(difference["explained"] for difference in comparison["differences"])


def test_a_damaged_head_lowers_the_acceptance(
    good: dict[str, Any], peagle: Peagle, prompts: Path, tmp_path: Path
) -> None:
    head = damaged_head(tmp_path)
    assert peagle("local", "up", "tiny", "--drafter", str(head), "--name", DAMAGED).returncode == 0
    done = peagle("bench", DAMAGED, "--acceptance", str(prompts), "--json")
    damaged = json.loads(done.stdout)["acceptance"]["total"]["acceptance"]
    healthy = good["acceptance"]["total"]["acceptance"]
    assert damaged["length"] < healthy["length"] - 0.2
    assert damaged["per_position"][1] < 0.8 * healthy["per_position"][1]
    assert damaged["drafts"] > healthy["drafts"], "as many tokens need more steps"
