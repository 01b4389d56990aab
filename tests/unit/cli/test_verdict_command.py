"""``peagle verdict``: what a user sees, the document, the file, and bad options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.cli.output.choose import Series, draw, print_verdict
from peagle.render.verdict_file import read_verdict
from peagle.speed.decision import Question, decide_workload
from peagle.speed.models import WORKLOADS, Acceptance, Performance, Workload
from peagle.speed.verdict import NO_SPECULATION, Setting, Verdict, VerdictChange
from tests.golden import assert_golden
from tests.support import Done, in_process
from tests.unit.cli.commands import Terminal, nothing_was_created

SMALL = ("gpt-oss-20b", "--vllm", "0.26.0", "--concurrency", "1,8,64")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def peagle(*arguments: str) -> Done:
    return in_process("verdict", *arguments)


LOADS = (1, 8, 64)
CURVES = {
    NO_SPECULATION: {"short-prompt": (324, 2298, 12135), "long-prompt": (307, 1832, 6149)},
    Setting(drafter="p-eagle", k=3): {
        "short-prompt": (563, 2796, 14452),
        "long-prompt": (480, 2200, 5287),
    },
    Setting(drafter="p-eagle", k=7): {
        "short-prompt": (742, 4148, 14200),
        "long-prompt": (661, 2639, 4900),
    },
    Setting(drafter="ngram", k=5): {},
}
"""Tokens/s by size of the requests, with one, eight and 64 of them."""


def performance_of(setting: Setting, workload: Workload, load: float) -> Performance:
    name = "short-prompt" if workload == WORKLOADS["short-prompt"] else "long-prompt"
    curve = CURVES[setting].get(name)
    length = {0: 1.0, 3: 2.88, 7: 3.4}.get(setting.k, 1.0)
    acceptance = Acceptance(length, "imposed" if curve else "unknown", "a test")
    if curve is None:
        return Performance("unknown", acceptance, "nothing is known")
    speed = float(curve[LOADS.index(int(load))])
    return Performance("measured", acceptance, "a test", speed, 0.9 * speed, speed, 0.02)


def a_verdict() -> Verdict:
    question = Question(tuple(CURVES), LOADS, 10.5, "p-eagle", performance_of)
    sizes = {name: WORKLOADS[name] for name in ("short-prompt", "long-prompt")}
    return Verdict(
        target="openai/gpt-oss-20b",
        gpu="H200",
        tensor_parallel_size=1,
        vllm="0.28.0",
        instance_type="ml.p5e.48xlarge",
        gpu_count=8,
        region="us-east-1",
        usd_per_hour=10.5,
        price_date="2026-11-20",
        workloads=tuple(decide_workload(question, name, size) for name, size in sizes.items()),
        changes=(VerdictChange(kind="evidence", text="no acceptance is known of ngram"),),
    )


def test_the_output_is_the_golden_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_verdict(a_verdict(), Path("verdict.json"))
    shown = capsys.readouterr().out

    assert max(map(len, shown.splitlines())) <= 120
    assert_golden("verdict/gpt-oss-20b-h200.txt", shown.encode())


@pytest.mark.thorough
def test_the_whole_catalogue_has_verdicts() -> None:
    for pair in ("gpt-oss-20b", "gpt-oss-120b", "qwen3-8b", "qwen3-coder-30b", "gemma-4-31b"):
        done = peagle(pair, "--gpu", "H200")
        assert done.code == 0, done.err
        assert "What would change it" in done.out


def test_it_has_prices_where_they_are_known() -> None:
    done = peagle("qwen3-8b", "--instance-type", "ml.g6e.xlarge", "--concurrency", "4")

    assert "per hour in us-east-1" in done.out
    assert "$/1M" in done.out


@pytest.mark.thorough
def test_the_document_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    done = peagle(*SMALL, "--gpu", "H200", "--json", "-o", str(path))

    assert done.code == 0
    assert done.document == json.loads(path.read_text())
    assert done.err == f"wrote {path}\n"
    assert [load.concurrency for load in read_verdict(path).workloads[0].loads] == [1, 8, 64]


def test_the_next_command_uses_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my verdict.json"
    done = peagle(*SMALL, "--gpu", "H200", "-o", str(path))

    assert done.out.splitlines()[-1].endswith(f"peagle plan openai/gpt-oss-20b --verdict '{path}'")


def test_the_next_command_has_a_load_that_the_file_covers(tmp_path: Path) -> None:
    load = ("--concurrency", "100", "--prompt-tokens", "8k", "--output-tokens", "500")
    command = ("gpt-oss-20b", "--gpu", "H200", *load, "-o", str(tmp_path / "v.json"))
    last = peagle(*command).out.splitlines()[-1]

    assert "--concurrency 100 --prompt-tokens 8192 --output-tokens 500 --verdict" in last


def test_the_users_own_requests() -> None:
    sizes = ("--prompt-tokens", "8k", "--output-tokens", "300")
    done = peagle(*SMALL, "--gpu", "H200", *sizes, "--json")

    (workload,) = done.document["workloads"]
    assert (workload["prompt_tokens"], workload["output_tokens"]) == (8192, 300)


def test_a_model_that_does_not_fit_is_refused() -> None:
    done = peagle("gpt-oss-120b", "--instance-type", "ml.g5.xlarge")

    assert done.code == 3
    assert "does not fit on 1 x A10G" in done.error


def test_a_chart_has_its_baseline_its_loads_and_its_marks() -> None:
    lines = list(draw([Series("a", {1: 2.0, 8: 1.5, 64: 0.5})], 40, 7, baseline=1.0, plain=True))
    assert lines[0].startswith("  2.0  o")
    assert lines[6].startswith("  0.5")
    assert any(line.startswith("  1.0 ---") for line in lines)
    assert lines[7].split() == ["1", "8", "64"]
    assert lines[8].strip() == "o a"
    assert all(len(line) <= 40 for line in lines)
    assert all(ord(character) < 128 for line in lines for character in line)


def test_a_chart_of_equal_values_and_of_none() -> None:
    assert list(draw([], 40, 5, baseline=1.0)) == []
    flat = list(draw([Series("a", {1: 1.0, 2: 1.0})], 40, 5, baseline=1.0))
    assert len(flat) == 7


@pytest.mark.thorough
def test_deploy_takes_drafter_and_k_from_the_file(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    size = ("--prompt-tokens", "1k", "--output-tokens", "256")
    load = ("--gpu", "A10G", "--concurrency", "8", *size)
    made = terminal.run("verdict", "tiny", *load, "-o", str(path))
    assert made.code == 0, made.err
    best = read_verdict(path).at(None, 8)[1].best
    assert best is not None
    chosen = ("--instance-type", "ml.g5.xlarge", "--verdict", str(path))

    done = terminal.run("deploy", "tiny", *chosen, "--yes", "--json")

    assert done.code == 0, done.err
    assert (done.document["k"] or 0) == best.k


def test_deploy_refuses_a_verdict_on_another_gpu(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    terminal.run("verdict", "tiny", "--gpu", "L40S", "--concurrency", "8", "-o", str(path))
    chosen = ("--instance-type", "ml.g5.xlarge", "--verdict", str(path))
    done = terminal.run("deploy", "tiny", *chosen, "--yes")

    assert done.code == 2
    assert "is a verdict on L40S, not on A10G (ml.g5.xlarge)" in done.error
    assert nothing_was_created(terminal)
