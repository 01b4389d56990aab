"""A fix that names an option and its value comes with the user's own command, so changed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from peagle.data import data_folder
from tests.support import Done, in_process


def _error_of(done: Done) -> dict[str, object]:
    error: dict[str, object] = json.loads(done.err.splitlines()[-1])["error"]
    return error


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        (
            "plan gpt-oss-20b --k 99 --region eu-west-1 --json",
            "plan gpt-oss-20b --region eu-west-1 --json --k 7",
        ),
        (
            "plan gpt-oss-20b --instance-type ml.g6e.xlarg --json",
            "plan gpt-oss-20b --json --instance-type ml.g6e.xlarge",
        ),
        (
            "plan gpt-oss-20b --set seed=8 --max-model-len 900k --json",
            "plan gpt-oss-20b --set seed=8 --json --max-model-len 131072",
        ),
        (
            "plan gpt-oss-20b --concurrency 4 --max-price-per-hour 0.5 --json",
            "plan gpt-oss-20b --concurrency 4 --json --max-price-per-hour 1.13",
        ),
        (
            "plan gpt-oss-120b --instance-type ml.g5.xlarge --json",
            "plan gpt-oss-120b --json --instance-type ml.g7e.2xlarge",
        ),
    ],
)
def test_the_command_of_an_error_is_the_users_own_and_works(typed: str, changed: str) -> None:
    refused = in_process(*shlex.split(typed))
    assert refused.code in (2, 3)
    assert _error_of(refused)["command"] == ["peagle", *shlex.split(changed)]
    assert in_process(*shlex.split(changed)).code == 0


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        (
            "fit gpt-oss-120b --gpu-memory-gib 40 --max-model-len 32768 --json",
            "fit gpt-oss-120b --gpu-memory-gib 40 --max-model-len 32768 --json "
            "--tensor-parallel-size 4",
        ),
        (
            "fit gpt-oss-120b --gpu-memory-gib 79.2 --json",
            "fit gpt-oss-120b --gpu-memory-gib 79.2 --json --gpu-memory-utilization 0.95",
        ),
        (
            "fit gpt-oss-120b --gpu-memory-gib 8 --json",
            "fit gpt-oss-120b --json --instance-type ml.g7e.2xlarge",
        ),
        (
            "check gpt-oss-20b --drafter head --json",
            "check gpt-oss-20b --json --drafter ./head",
        ),
    ],
)
def test_an_option_in_a_sentence_is_in_a_command_too(
    typed: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "head").mkdir()
    assert _error_of(in_process(*typed.split()))["command"] == ["peagle", *changed.split()]


def test_a_pair_in_place_of_a_plan_file_gets_a_command_that_writes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = _error_of(in_process("prove", "--url", "http://h", "--plan", "tiny", "--json"))
    assert error["command"] == ["peagle", "plan", "PAIR", "--output", "tiny.json"]


def test_people_see_the_command_after_the_sentence() -> None:
    done = in_process("plan", "gpt-oss-20b", "--k", "99")
    shown = "(use --k 10 or less; 7 is recommended: peagle plan gpt-oss-20b --k 7)"
    assert done.error.endswith(shown)
    checked = in_process("check", "gpt-oss-20b", "--k", "99").out
    assert "7 is recommended: peagle check gpt-oss-20b --k 7\n" in checked
    assert "p-eagle-long: peagle" not in checked  # a note


def test_another_spelling_of_the_option_is_replaced() -> None:
    done = in_process("check", "gpt-oss-20b", "--tensor-parallel-size", "3", "--json")
    commands = {one["code"]: one["command"] for one in json.loads(done.out)["findings"]}
    assert commands["tensor-parallel"] == [
        "peagle", "check", "gpt-oss-20b", "--json", "--tp", "2",
    ]  # fmt: skip


def _command_of(code: str, *typed: str) -> list[str] | None:
    findings = json.loads(in_process(*typed, "--json").out)["findings"]
    (command,) = [one["command"] for one in findings if one["code"] == code]
    return command  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ("check gpt-oss-20b", "check gpt-oss-20b --json --drafter p-eagle-long"),
        ("check gpt-oss-20b+p-eagle", "check gpt-oss-20b --json --drafter p-eagle-long"),
        ("check gpt-oss-20b --drafter p-eagle", "check gpt-oss-20b --json --drafter p-eagle-long"),
    ],
)
def test_another_drafter_replaces_that_of_the_pair(typed: str, changed: str) -> None:
    command = _command_of("long-context-head", *typed.split())
    assert command == ["peagle", *changed.split()]
    again = in_process(*changed.split())
    assert again.code == 0
    assert "long-context-head" not in {one["code"] for one in json.loads(again.out)["findings"]}


def test_a_catalogue_with_the_name_of_the_pair_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = (data_folder("model_catalog") / "openai" / "gpt-oss-20b.yaml").read_text()
    renamed = bundled.replace("id: openai/gpt-oss-20b", "id: acme/chat")
    file = tmp_path / "gpt-oss-20b" / "acme" / "chat.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(renamed.replace("short_name: gpt-oss-20b", "short_name: chat"))
    monkeypatch.chdir(tmp_path)
    done = in_process("--catalog", "gpt-oss-20b", "check", "gpt-oss-20b+p-eagle", "--json")
    commands = {one["code"]: one["command"] for one in json.loads(done.out)["findings"]}
    head = ["peagle", "--catalog", "gpt-oss-20b", "check", "gpt-oss-20b"]
    assert commands["long-context-head"] == [*head, "--json", "--drafter", "p-eagle-long"]


def test_a_region_is_replaced_and_not_repeated() -> None:
    image = "763104351884.dkr.ecr.eu-west-1.amazonaws.com/vllm:0.28.0-gpu-py312"
    typed = ("check", "gpt-oss-20b", "--image", image, "--region", "us-east-1")
    command = _command_of("image-in-another-region", *typed)
    assert command == [
        "peagle", "check", "gpt-oss-20b", "--image", image, "--json", "--region", "eu-west-1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        (
            "--instance-type ml.p5.48xlarge --max-price-per-hour 0.5",
            "--max-price-per-hour 1.13 --instance-type ml.g6.xlarge",
        ),
        (
            "--concurrency 1 --instance-type ml.g4dn.xlarge --max-price-per-hour 2",
            "--instance-type ml.g6.xlarge",
        ),
    ],
)
def test_a_type_and_a_limit_of_the_price_fit_together(typed: str, changed: str) -> None:
    command = _error_of(in_process("plan", "gpt-oss-20b", *typed.split(), "--json"))["command"]
    assert isinstance(command, list)
    assert command[-len(changed.split()) :] == changed.split()
    assert in_process(*command[1:]).code == 0


@pytest.mark.parametrize("other", ["gpt-oss-20b --k 99", "tiny --instance-type ml.g5.xlarg"])
def test_the_second_plan_of_a_comparison_does_not_change_the_first(other: str) -> None:
    error = _error_of(in_process("plan", "gpt-oss-20b", "--compare", other, "--json"))
    assert error["fix"]
    assert error["command"] is None


@pytest.mark.parametrize("more", [("--verbose",), ("--output", "plan.json")])
def test_a_plan_is_the_same_however_it_is_typed(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = in_process("plan", "gpt-oss-20b", "--json").out
    plan = in_process("plan", "gpt-oss-20b", "--json", *more).out
    assert plan == first
    finding = next(one for one in json.loads(plan)["findings"] if one["options"])
    assert finding["command"] is None


def test_a_command_that_does_not_take_the_option_suggests_none() -> None:
    """`plan` has no --fallback-instance-types, which `deploy` has."""
    done = in_process("plan", "gpt-oss-20b", "--instance-type", "ml.g6e.xlarge", "--json")
    commands = {one["code"]: one["command"] for one in json.loads(done.out)["findings"]}
    assert commands["instance-scarce"] is None


def test_an_unknown_fallback_does_not_change_the_first_type() -> None:
    done = in_process(
        *("deploy", "gpt-oss-20b", "--fallback-instance-types", "ml.g6e.xlarg"),
        *("--sandbox", "--yes", "--json"),
    )
    assert _error_of(done)["command"] is None
