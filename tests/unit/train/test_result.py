"""The folder of a trained head: other commands take it as it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.bench.acceptance import read_acceptance
from peagle.catalog.evidence import read_run
from peagle.errors import UserError
from peagle.train import result as results
from tests.support import in_process
from tests.unit.train.trainings import make_workshop


@pytest.mark.parametrize("name", ["my_head", "Kopf 2+ü", "-x"])
def test_the_name_of_any_folder_becomes_one_of_the_catalogue(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_workshop(tmp_path, monkeypatch)
    monkeypatch.setattr(results, "find_trainer", lambda gpu: tmp_path / "no-python")
    shop.change(output=tmp_path / name)
    entry = results.write_result(shop.training, shop.train(epochs=1))
    (drafter,) = (each.parent.name for each in entry.parent.glob("*-head/config.json"))
    command = ("--catalog", str(tmp_path / name / ".catalog"), "plan", f"tiny+{drafter}", "--json")
    assert in_process(*command).document["pair"] == f"peagle/tiny+{drafter}"


def test_a_head_is_not_replaced_by_that_of_another_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_workshop(tmp_path, monkeypatch)
    monkeypatch.setattr(results, "find_trainer", lambda gpu: tmp_path / "no-python")
    results.write_result(shop.training, shop.train())
    recipe = shop.training.recipe
    for more in (recipe, replace(recipe, epochs=9)):
        shop.change(recipe=more)
        results.require_own(shop.training)
    shop.change(recipe=replace(recipe, answer_tokens=7))
    with pytest.raises(UserError) as refused:
        results.require_own(shop.training)
    assert refused.value.code == "other-training"
    (shop.training.output / "training.json").write_text("{}")  # of another program
    with pytest.raises(UserError) as refused:
        results.require_own(shop.training)
    assert refused.value.code == "other-training"


def test_other_commands_take_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make_workshop(tmp_path, monkeypatch)
    monkeypatch.setattr(results, "find_trainer", lambda gpu: tmp_path / "no-python")
    shop.lengths = {"0": 2.0, "1": 3.0}
    entry = results.write_result(shop.training, shop.train())
    head = shop.training.output
    assert entry == head / ".catalog" / "peagle" / "tiny.yaml"
    assert read_acceptance(head / "acceptance.json").total.acceptance.length == 3.0
    record = json.loads((head / "training.json").read_text())
    assert [epoch["acceptance_length"] for epoch in record["epochs"]] == [2.0, 3.0]
    assert record["chosen_epoch"] == 1
    assert record["lossless"]["passed"]
    assert record["data"]["sha256"] == shop.training.data.sha256
    assert (head / "held-out.jsonl").read_text().count("\n") == len(shop.training.data.held_out)

    checked = in_process("check", "tiny", "--drafter", str(head), "--json")
    assert checked.code == 0, checked.document
    planned = in_process("plan", "tiny", "--drafter", str(head), "--k", "5", "--json")
    assert planned.code == 0, planned.err

    run = read_run(head / ".catalog" / "evidence" / "tiny-output-head.json")
    assert run is not None
    assert run.on_text[0].acceptance_length == 3.0
    command = ("--catalog", str(head / ".catalog"), "plan", "tiny+output-head", "--json")
    assert in_process(*command).document["pair"] == "peagle/tiny+output-head"
