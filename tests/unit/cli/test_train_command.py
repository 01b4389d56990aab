"""``peagle train plan``: the document, and bad options and data."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from moto import mock_aws

from peagle.bench.workloads import read_prompts
from peagle.catalog import load_catalog
from peagle.train.recipe import Recipe
from peagle.train.run import Run, TrainerFailed
from tests.support import in_process
from tests.unit.aws.conftest import moto_connection

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


@pytest.mark.parametrize(("options", "shown"), [
    (("--region", "eu-west-1"), {"price-of-another-region"}),
    (("--region", "eu-west-1", "--price-per-hour", "2"), set()),
    ((), set()),
])  # fmt: skip
def test_a_price_of_another_region_says_so(
    data: Path, options: tuple[str, ...], shown: set[str]
) -> None:
    done = in_process("train", "plan", "tiny", "--data", str(data), *ON, *options, "--json")
    codes = {finding["code"] for finding in done.document["findings"]}
    assert {code for code in codes if "price" in code} == shown


def test_the_prompts_of_the_alternatives_are_the_held_out_ones(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    words = ("--data", str(data), *ON, "--prompts", str(file))
    done = in_process("train", "plan", "tiny", *words)
    assert f"peagle bench local --acceptance {file}" in " ".join(done.out.split())
    prompts = read_prompts(file).prompts
    assert 0 < len(prompts) < len(data.read_text().splitlines())
    assert all(prompt.messages[-1]["role"] == "user" for prompt in prompts)


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
        (("--mask-token-id", "1024", *ON), 2, "out-of-range"),
        (("--probe", "--gpu", "H200"), 2, "conflicting-options"),
        (("--probe", *ON), 2, "conflicting-options"),
    ],
)
def test_what_cannot_be_planned(
    data: Path, options: tuple[str, ...], exit_code: int, code: str
) -> None:
    done = in_process("train", "plan", "tiny", "--data", str(data), *options, "--json")
    assert (done.code, json.loads(done.err)["error"]["code"]) == (exit_code, code)


def test_a_fix_names_the_folder_of_the_users_own_target(data: Path) -> None:
    on = ("--instance-type", "ml.g4dn.xlarge")
    done = in_process("train", "plan", str(TINY_TARGET), "--data", str(data), *on, "--json")
    command = ["peagle", "plan", str(TINY_TARGET)]
    assert (done.code, done.refusal["command"]) == (3, command)


@pytest.mark.parametrize("target", ["tiny+p-eagle", f"{TINY_TARGET}+ngram"])
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_pair_with_a_drafter_is_refused(target: str, verb: str, data: Path) -> None:
    output = ("-o", str(data.parent / "head")) if verb == "run" else ()
    done = in_process("train", verb, target, "--data", str(data), *output, "--json")
    assert (done.code, done.refusal["code"]) == (2, "drafter-in-training")


def test_a_plan_says_what_the_disk_of_the_instance_cannot_hold(data: Path) -> None:
    words = ("--data", str(data), *ON, "--epochs", "50000", "--json")
    done = in_process("train", "plan", "tiny", *words)
    assert "job-disk" in {each["code"] for each in done.document["findings"]}
    assert "data-few" not in {each["code"] for each in done.document["findings"]}
    assert (done.code, done.refusal["code"]) == (3, "job-disk")
    shown = in_process("train", "plan", "tiny", *words[:-1])
    assert (shown.code, (shown.out + shown.err).count("of disk; ml.g6.xlarge has")) == (3, 1)


def test_answers_have_the_longest_length_or_the_given_one(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    rows = ({"messages": [{"role": "user", "content": f"question {n}"}]} for n in range(9))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ("train", "plan", "tiny", "--data", str(file), *ON, "--json")
    longest, given = (in_process(*command, *more) for more in ((), ("--output-tokens", "100")))
    assert longest.document["workload"]["output_tokens"] == Recipe.answer_tokens
    assert given.document["workload"]["output_tokens"] == 100
    assert "data-no-answers" in {each["code"] for each in longest.document["findings"]}


@pytest.mark.parametrize(("before", "after", "code"), [
    ("<|mask|>", "<|used|>", "no-mask-token"),
    ('"num_hidden_layers": 8', '"num_hidden_layers": 4', "target-too-small"),
])  # fmt: skip
def test_a_target_that_can_have_no_head_is_refused_before_data_is_read(
    tmp_path: Path, before: str, after: str, code: str
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(TINY_TARGET, folder)
    for file in folder.glob("*.json"):
        file.write_text(file.read_text().replace(before, after))
    for words in (("plan", str(folder)), ("run", str(folder), "-o", str(tmp_path / "head"))):
        done = in_process("train", *words, "--data", "missing.jsonl", "--json")
        assert (done.code, json.loads(done.err)["error"]["code"]) == (2, code)


def test_a_training_goes_on_with_the_data_that_it_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f'{{"prompt": "question {n}"}}\n' for n in range(40)]
    seen: list[int] = []

    def train(self: Run) -> None:
        seen.append(len(self.training.data.train) + len(self.training.data.held_out))
        raise TrainerFailed("it ends here")

    monkeypatch.setattr(Run, "train", train)
    monkeypatch.setattr("peagle.train.run.find_trainer", lambda gpu: tmp_path)
    monkeypatch.setattr("peagle.aws.client.connect", lambda *_, **__: moto_connection())
    with mock_aws():
        aws = moto_connection()
        aws.call("s3", "create_bucket", Bucket="captured")
        for count, head in ((30, "a"), (40, "a"), (40, "b")):
            body = "".join(rows[:count]).encode()
            aws.call("s3", "put_object", Bucket="captured", Key="rows.jsonl", Body=body)
            words = ("--data", "s3://captured/rows.jsonl", "-o", str(tmp_path / head), "--json")
            done = in_process("train", "tiny", *words)
            assert done.refusal["code"] == "trainer-failed", done.err
    assert seen == [30, 30, 40]


def test_the_disk_is_looked_at_before_a_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", Mock(return_value=Mock(free=1_000_000)))
    head = tmp_path / "new" / "head"
    done = in_process("train", "tiny", "--data", str(data), "-o", str(head), "--json")
    assert (done.code, "disk-full" in done.err) == (2, True)
    assert not head.parent.exists()


def test_a_training_that_the_plan_advises_against_says_so_and_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.train.run.find_trainer", lambda gpu: tmp_path)
    monkeypatch.setattr(Run, "train", Mock(side_effect=TrainerFailed("it has begun")))
    done = in_process("train", "tiny", "--data", str(data), "-o", str(tmp_path / "head"), "--json")
    assert done.refusal["code"] == "trainer-failed"
    assert "[do-not-train]" in done.err


def test_a_folder_of_other_files_is_no_place_for_a_head(data: Path) -> None:
    before = sorted(TINY_TARGET.iterdir())
    done = in_process("train", str(TINY_TARGET), "--data", str(data), "-o", str(TINY_TARGET))
    assert (done.code, sorted(TINY_TARGET.iterdir())) == (2, before)


def test_prompts_of_the_proof_of_any_target_are_left_out(data: Path) -> None:
    prompts = [p for target in load_catalog().targets.values() for p in target.proof.prompts]
    with data.open("a") as file:
        file.writelines(f"{json.dumps({'prompt': prompt})}\n" for prompt in prompts)
    plan = in_process("train", "plan", str(TINY_TARGET), "--data", str(data), *ON, "--json")
    [left_out] = [f for f in plan.document["findings"] if f["code"] == "data-left-out"]
    assert left_out["message"].endswith(f"{len(prompts)} sent-by-peagle")
