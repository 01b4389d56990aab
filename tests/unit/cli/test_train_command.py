"""``peagle train plan``: the document, and bad options and data."""

import json
from pathlib import Path

import pytest

from tests.support import in_process

TINY_TARGET = Path(__file__).parents[3] / "model_catalog" / "peagle" / "tiny" / "target"
ON = ("--instance-type", "ml.g6.xlarge")


@pytest.fixture(name="data")
def write_data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"question {number} " * 40},
                {"role": "assistant", "content": "answer " * 60},
            ]
        }
        for number in range(50)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def test_a_target_of_the_users_own_is_planned(data: Path) -> None:
    done = in_process("train", "plan", str(TINY_TARGET), "--data", str(data), *ON, "--json")
    assert done.code == 0, done.err
    plan = done.document
    assert plan["target"] == "own/target"
    assert plan["data"]["conversations"] <= 50
    assert plan["advice"] == "train-more-data"
    assert plan["break_even"][0]["against"] == {"drafter": None, "k": 0}
    assert list(plan["alternatives"]) == ["ngram"]
    assert plan["hours"]["total"]["low"] < plan["hours"]["total"]["high"]


def test_the_answer_is_the_first_line(data: Path) -> None:
    done = in_process("train", "plan", "tiny", "--data", str(data), *ON)
    assert done.code == 0
    assert done.out.splitlines()[0].startswith("Do not train")
    assert "peagle local up tiny+p-eagle && peagle bench local --acceptance" in done.out


def test_the_answers_may_be_longer_than_the_datas(data: Path) -> None:
    command = ("train", "plan", "tiny", "--data", str(data), *ON, "--json")
    usual, longer = in_process(*command), in_process(*command, "--output-tokens", "1000")
    assert usual.document["data"]["answer_tokens"] < longer.document["data"]["answer_tokens"]
    assert longer.document["workload"]["output_tokens"] == 1000
    kept = in_process(*command, "--keep-answers")
    assert kept.document["hours"]["regeneration"]["likely"] == 0


@pytest.mark.parametrize(
    ("options", "exit_code", "code"),
    [
        (("--budget", "0.01", *ON), 2, "budget-too-small"),
        (("--gpu", "H900"), 2, "unknown-gpu"),
        (("--instance-type", "ml.p9.large"), 2, "instance-unknown"),
        (("--held-out", "2", *ON), 2, "usage"),
    ],
)
def test_what_cannot_be_planned(
    data: Path, options: tuple[str, ...], exit_code: int, code: str
) -> None:
    done = in_process("train", "plan", "tiny", "--data", str(data), *options, "--json")
    assert (done.code, json.loads(done.err)["error"]["code"]) == (exit_code, code)


def test_prompts_need_a_length_of_answers(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    rows = ({"messages": [{"role": "user", "content": f"question {n}"}]} for n in range(9))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ("train", "plan", "tiny", "--data", str(file), *ON, "--json")
    done = in_process(*command)
    assert (done.code, json.loads(done.err)["error"]["code"]) == (2, "missing-option")
    assert in_process(*command, "--output-tokens", "100").code == 0
