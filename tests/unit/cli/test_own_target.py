"""A target without a catalogue file: a folder, S3, or an id on the Hub."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import in_process
from tests.unit.checkpoints import public_targets as public
from tests.unit.checkpoints.fake_hub import REPO, FakeHub, running
from tests.unit.checks.cases import GEOMETRY
from tests.unit.checks.damage import tiny
from tests.unit.cli.commands import Terminal


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a model that is not in the catalogue."""
    return Path(shutil.copytree(tiny("target"), tmp_path / "My Model"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A Hub with that model."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    hub = FakeHub()
    hub.files = {path.name: path.read_bytes() for path in tiny("target").iterdir()}
    with running(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        yield hub


def test_a_folder_is_planned_without_speculation(model: Path) -> None:
    done = in_process("plan", str(model), "--json")
    assert done.code == 0, done.err
    plan = done.document
    assert (plan["pair"], plan["name"]) == ("own/My-Model", "peagle-my-model")
    assert plan["speculation"] is None
    assert plan["target"]["weights"]["kind"] == "directory"
    (note,) = [f for f in plan["findings"] if f["code"] == "target-not-in-catalogue"]
    assert "unknown: licence" in note["message"]
    assert note["command"] == ["peagle", "catalog", "init", str(model)]


def tuned(folder: Path, short_name: str = "qwen3-coder-30b", **changes: object) -> Path:
    """A folder with the config.json of a fine-tuned copy of that target."""
    config = json.loads((GEOMETRY / short_name / "target/config.json").read_text())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_a_tuned_copy_may_use_the_head_of_its_base(tmp_path: Path) -> None:
    done = in_process("plan", str(tuned(tmp_path / "tuned")), "--json")
    notes = [f for f in done.document["findings"] if f["code"] == "no-head"]
    (base,) = [f["command"] for f in notes if "--online" in (f["command"] or ())]
    assert base[3:] == ["--drafter", "amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE", "--online"]
    trained = [f["command"] for f in notes if "train" in (f["command"] or ())]
    assert trained == [["peagle", "train", "plan", str(tmp_path / "tuned"), "--data",
                        "prompts.jsonl"]]  # fmt: skip
    head = GEOMETRY / "qwen3-coder-30b/p-eagle"
    with_head = in_process("plan", str(tmp_path / "tuned"), "--drafter", base[4], "--json")
    assert with_head.code == 2, "the head's method is unknown until it is read"
    assert in_process("check", str(tmp_path / "tuned"), "--drafter", str(head)).code == 0


@pytest.mark.parametrize("method", ["ngram", "NGRAM", "suffix"])
def test_a_folder_drafts_without_a_head(model: Path, method: str) -> None:
    done = in_process("plan", f"{model}+{method}", "--json")
    assert done.code == 0, done.err
    assert done.document["pair"] == f"own/My-Model+{method.lower()}"
    assert done.document["speculation"]["method"] == method.lower()
    assert "no-head" not in {f["code"] for f in done.document["findings"]}


@pytest.mark.parametrize("methods", [("", "+ngram"), ("+ngram", ""), ("+suffix", "+ngram")])
def test_alternatives_of_a_folder_are_compared(model: Path, methods: tuple[str, str]) -> None:
    first, second = (f"{model}{method}" for method in methods)
    done = in_process("plan", first, "--compare", f"'{second}'", "--json")
    assert done.code == 0, done.err
    pairs = [f"own/My-Model{method}" for method in methods]
    assert [plan["pair"] for plan in done.document["plans"]] == pairs


def test_an_entry_that_a_training_has_written_is_in_its_catalogue(
    model: Path, tmp_path: Path
) -> None:
    """It keeps the source of what was read."""
    file = tmp_path / "mine" / "own" / "my-model.yaml"
    assert in_process("catalog", "init", str(model), "-o", str(file)).code == 0
    entry = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**entry, "source": f"read from {model}"}))
    done = in_process("--catalog", str(tmp_path / "mine"), "plan", "own/my-model", "--json")
    assert done.code == 0, done.err
    assert done.document["pair"] == "own/my-model"


def test_a_drafter_that_no_own_target_has_names_those_that_it_may_have(model: Path) -> None:
    done = in_process("plan", f"{model}+eagle3")
    assert done.code == 2
    assert f"{model}+ngram" in done.err


@pytest.mark.thorough
def test_a_model_on_the_hub_is_read_online_only(terminal: Terminal, hub: FakeHub) -> None:
    offline = terminal.run("plan", REPO, "--concurrency", "4")
    assert offline.code == 2
    command = f"peagle plan {REPO} --online"
    assert f"to read it from the Hub: {command})" in offline.err.strip() + ")"
    assert hub.requests == []
    done = terminal.succeeds(*shlex.split(command)[1:], "--json")
    assert done.document["pair"] == REPO
    assert done.document["target"]["weights"]["kind"] == "hub"


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("plan", "--online"), ("deploy", "--yes")])
def test_a_head_on_the_hub_is_read_for_an_own_target(
    terminal: Terminal, hub: FakeHub, model: Path, command: tuple[str, str]
) -> None:
    hub.files = {path.name: path.read_bytes() for path in tiny("eagle3").iterdir()}
    name, *flags = command
    words = (str(model), "--drafter", REPO, "--instance-type", "ml.g5.xlarge", *flags)
    done = terminal.succeeds(name, *words)
    assert "EAGLE-3" in done.out + done.err


@pytest.mark.parametrize(("words", "fix"), [
    (("fit", REPO, "--k", "1"), f"peagle fit --target {REPO}"),
    (("check", REPO, "--k", "3"), f"peagle check {REPO} --target hf"),
    (("render", "terraform", REPO, "-o", "x"), f"peagle plan {REPO} --online --output plan.json"),
    (("plan", "s3://bkt/model/"), "peagle plan s3://bkt/model/ --online"),
])  # fmt: skip
def test_the_error_names_the_command_that_reads_it(words: tuple[str, ...], fix: str) -> None:
    done = in_process(*words)
    assert done.code == 2
    assert fix in done.err
    assert len(done.err.splitlines()) == 1


def test_a_folder_is_deployed(terminal: Terminal, model: Path) -> None:
    words = ("deploy", str(model), "--instance-type", "ml.g5.xlarge", "--yes")
    done = terminal.succeeds(*words)
    assert "peagle-my-model is InService" in done.out + done.err


@pytest.mark.parametrize(("make", "message"), [
    (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
    (lambda folder: (folder / "config.json").write_text("{}"), "it has no"),
    (lambda folder: shutil.copy(tiny("p-eagle") / "config.json", folder),
     "holds a draft head, not a model"),
])  # fmt: skip
def test_a_folder_that_cannot_be_planned_is_one_clear_error(
    make: object, message: str, model: Path
) -> None:
    make(model)  # type: ignore[operator]
    done = in_process("plan", str(model))
    assert done.code in (2, 3)
    assert message in done.err
    assert len(done.err.splitlines()) == 1


# Every command reads public targets by their config.json alone, as a user brings them.
AWQ = public.config(
    "Qwen3ForCausalLM", "qwen3", "5120 25600 64 64 8 151936 131072", head_dim=128,
    quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128},
)  # fmt: skip


def written(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    "config",
    [public.KIMI_LINEAR, public.QWEN3_NEXT, public.GEMMA3_27B, public.GEMMA_3N, public.EXAONE4,
     public.LLAMA4_SCOUT, public.DEEPSEEK_V3, AWQ,
     *(public.PUBLISHED[name][0] for name in
       ("gpt2", "falcon-7b", "LLaVA-1.5-7b", "Qwen2-Audio-7B"))],
    ids=lambda config: str(config["model_type"]),
)  # fmt: skip
def test_it_is_checked_fitted_planned_and_described(tmp_path: Path, config: dict[str, Any]) -> None:
    place = written(tmp_path / "model", config)
    assert in_process("check", place).code == 0
    fit = in_process("fit", "--target", place, "--max-model-len", "1024",
                     "--instance-type", "ml.p6-b300.48xlarge", "--json")  # fmt: skip
    assert fit.document["fits"], fit.err
    plan = in_process("plan", place, "--max-model-len", "1k", "--json")
    assert plan.code == 0, plan.err
    assert "not-estimated" not in {finding["code"] for finding in plan.document["findings"]}
    entry = in_process("catalog", "init", place, "--output", str(tmp_path / "entry.yaml"))
    assert entry.code == 0, entry.err


@pytest.mark.parametrize(("options", "size", "copies"), [
    ((), 4, 2), (("--copies", "1", "--set", "enable-expert-parallel=true"), 8, None),
])  # fmt: skip
def test_a_size_that_cuts_a_block_is_no_candidate(
    tmp_path: Path, options: tuple[str, ...], size: int, copies: int | None
) -> None:
    where = ("--max-model-len", "128k", "--concurrency", "64", "--instance-type", "ml.p5.48xlarge")
    done = in_process(
        "plan", written(tmp_path / "q", public.QWEN3_235B_FP8), *where, *options, "--json"
    )
    plan = done.document
    assert plan["fit"]["tensor_parallel_size"] == size
    assert plan.get("copies", {}).get("per_instance") == copies
    codes = {finding["code"]: finding for finding in plan["findings"]}
    assert ("quantization-block" in codes) == (size == 4)


def test_the_size_of_the_user_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = written(tmp_path / "q", public.QWEN3_235B_FP8)
    on = ("--instance-type", "ml.p5.48xlarge", "--tp", "8", "--json")
    refused = in_process("fit", "--target", place, *on)
    assert refused.code == 2
    assert "fp8.py:534" in refused.err
    whole = in_process("fit", "--target", place, *on, "--set", "enable-expert-parallel=true")
    assert whole.code == 0, whole.err


NO_TEXT = [
    ("BertModel", "bert"), ("Qwen2ForRewardModel", "qwen2"), ("T5EncoderModel", "t5"),
    ("CLIPModel", "clip"), ("Qwen3VLForSequenceClassification", "qwen3_vl"),
]  # fmt: skip


@pytest.mark.parametrize(("class_name", "model_type"), NO_TEXT)
def test_what_generates_no_text_is_refused(
    tmp_path: Path, class_name: str, model_type: str
) -> None:
    shape = AWQ | {"architectures": [class_name], "model_type": model_type}
    _refused(written(tmp_path / "model", shape))


@pytest.mark.parametrize("class_name", ["WhisperForConditionalGeneration", "RwkvForCausalLM"])
def test_a_model_without_speculation_is_no_damaged_file(class_name: str, tmp_path: Path) -> None:
    config = {"architectures": [class_name], "model_type": "whisper", "d_model": 1280,
              "decoder_layers": 32, "is_encoder_decoder": class_name[0] == "W"}  # fmt: skip
    for command in ("plan", "check"):
        done = in_process(command, written(tmp_path / "model", config), "--json")
        assert (done.code, json.loads(done.err)["error"]["code"]) == (2, "not-estimated")


def _refused(place: str) -> None:
    for arguments in (
        ("plan", place), ("check", place), ("catalog", "init", place),
        ("fit", "--target", place, "--gpu-memory-gib", "80"),
        ("fit", "qwen3-coder-30b", "--target", place, "--gpu-memory-gib", "80"),
    ):  # fmt: skip
        done = in_process(*arguments)
        assert done.code == 2, arguments
        assert "generates no text" in done.err


@pytest.mark.parametrize(
    ("class_name", "model_type", "code"),
    [
        ("CodeGenForCausalLM", "codegen", 3), ("BaichuanForCausalLM", "baichuan", 3),
        ("Grok1ModelForCausalLM", "grok-1", 3), ("MiniMaxText01ForCausalLM", "minimax_text_01", 3),
    ],
)  # fmt: skip
def test_what_vllm_does_not_serve_is_refused(
    tmp_path: Path, class_name: str, model_type: str, code: int
) -> None:
    shape = {key: AWQ[key] for key in AWQ if key != "quantization_config" and key != "head_dim"}
    config = shape | {"architectures": [class_name], "model_type": model_type}
    place = written(tmp_path / "model", config)
    done = in_process("plan", place, "--json")
    assert (done.code, json.loads(done.err)["error"]["code"]) == (code, "model-not-served")
    if class_name.startswith(("Bai", "Grok", "Mini")):
        older = in_process("check", place, "--vllm", "0.23.0")
        assert "model-not-served" not in older.out
