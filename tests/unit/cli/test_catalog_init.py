"""``peagle catalog init``: a file that the catalogue accepts, with what is unknown marked."""

import shutil
from pathlib import Path

import pytest

from peagle.catalog import find_pair, load_catalog
from peagle.render.requests import pair_arguments
from peagle.weights.own_target import plan_pair
from tests.support import Done, in_process
from tests.unit.checkpoints.fake_hub import REPO, FakeHub, running
from tests.unit.checks.damage import tiny

TARGET, HEAD = str(tiny("target")), str(tiny("p-eagle"))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*words: str) -> Done:
    return in_process("catalog", "init", *words)


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["p-eagle", "eagle3"])
def test_the_file_is_accepted_and_planned(head: str) -> None:
    done = init(TARGET, "--drafter", str(tiny(head)), "-o", "own/acme/chat-7b.yaml")
    assert done.code == 0, done.err
    pair = f"chat-7b+{head}"
    assert f"Next: peagle --catalog own plan {pair}" in done.err
    assert in_process("catalog", "check", "own/acme/chat-7b.yaml").code == 0
    plan = in_process("--catalog", "own", "plan", pair, "--json").document
    assert plan["pair"] == f"acme/chat-7b+{head}"
    assert plan["speculation"]["parallel_drafting"] is (head == "p-eagle")


def test_the_numbers_are_those_of_the_checkpoint() -> None:
    init(TARGET, "--drafter", HEAD, "-o", "own/acme/chat-7b.yaml")
    made = find_pair(load_catalog(Path("own")), "chat-7b")
    bundled = find_pair(load_catalog(), "tiny")
    assert made.target.architecture == bundled.target.architecture
    assert made.target.parameters == bundled.target.parameters
    assert made.drafter is not None
    assert bundled.drafter is not None
    assert made.drafter.weight_bytes == bundled.drafter.weight_bytes
    assert made.drafter.attention == bundled.drafter.attention
    assert made.target.proof.chat


def test_weights_in_a_folder_are_uploaded_from_there() -> None:
    init(TARGET, "--drafter", HEAD, "-o", "my")
    plan = in_process("--catalog", "my", "plan", "target+p-eagle", "--json").document
    for part, location in (("target", TARGET), ("drafter", HEAD)):
        weights = plan[part]["weights"]
        assert (weights["kind"], weights["location"]) == (
            "directory",
            str(Path(location).resolve()),
        )
        assert weights["s3_uri"].endswith(f"/{part}/")
    checked = in_process("--catalog", "my", "check", "target+p-eagle", "--json").document
    assert [files["location"] for files in checked["read"]] == [
        str(Path(each).resolve()) for each in (TARGET, HEAD)
    ]
    made = plan_pair("target+p-eagle", {}, load_catalog(Path("my")))
    assert pair_arguments(made) == ["own/target+p-eagle"]
    copied = "s3://bucket/target/"
    words = ("plan", "own/target", "--no-speculation", "--model-source", copied, "--json")
    weights = in_process("--catalog", "my", *words).document["target"]["weights"]
    assert (weights["kind"], weights["location"]) == ("s3", copied)


def test_a_folder_of_this_one_is_named_where_it_is() -> None:
    shutil.copytree(TARGET, "mine")
    assert init("./mine", "-o", "my").code == 0
    weights = in_process("--catalog", "my", "plan", "mine", "--json").document["target"]["weights"]
    assert weights["location"] == str(Path("mine").resolve())


def test_what_is_unknown_is_marked() -> None:
    document = init(TARGET, "--drafter", HEAD, "--json").document
    assert document["file"] is None
    expected = {"licence", "min_vllm", "engine_arguments", "drafters[0].k_trained"}
    assert expected <= document["unknown"].keys()
    assert document["text"].startswith("# unknown: licence, ")


@pytest.mark.thorough
def test_a_model_on_the_hub_keeps_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub()
    hub.files = {path.name: path.read_bytes() for path in tiny("target").iterdir()}
    monkeypatch.setenv("HF_HOME", "hf")
    with running(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        done = init(REPO, "-o", "own")
    assert done.code == 0, done.err
    assert load_catalog(Path("own")).targets[REPO].weights == REPO


@pytest.mark.parametrize(("words", "message"), [
    ((HEAD,), "holds a draft head, not a model"),
    ((TARGET, "--drafter", TARGET), "holds no EAGLE-3 or P-EAGLE head"),
    ((TARGET, "-o", "x.json"), "x.json is not a .yaml file"),
    (("./nowhere",), "nowhere"),
    (("word",), "'word' is not a weights location"),
])  # fmt: skip
def test_a_wrong_model_is_one_clear_error(words: tuple[str, ...], message: str) -> None:
    done = init(*words)
    assert done.code in (2, 3)
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_file_is_not_replaced_without_force() -> None:
    assert init(TARGET, "-o", "own").code == 0
    again = init(TARGET, "-o", "own")
    assert again.code == 2
    assert "--force" in again.err
    assert init(TARGET, "-o", "own", "--force").code == 0
