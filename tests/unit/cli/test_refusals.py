"""A wrong use ends with 2, one line on stderr and the code of its cause; nothing is created."""

import shlex
from pathlib import Path

import pytest

from tests.support import in_process

REFUSED = [
    ("catalog init README.md", "invalid-location"),
    ("check tiny --drafter eagel3", "unknown-drafter"),
    ("check tiny+p-eagle --drafter eagle3", "conflicting-options"),
    ("check gemma-4-31b --drafter hf", "not-on-hub"),
    ("check tiny --vllm newest", "invalid-version"),
    ("check tiny --env NAME", "invalid-variable"),
    ("check tiny --set =2", "invalid-argument"),
    ("check tiny --speculative num_speculative_tokens=5", "usage"),
    ("check tiny+ngram --drafter ./head", "drafts-without-head"),
    ("check tiny --drafter s3://MyBkt/head", "invalid-s3-uri"),
    ("check tiny --catalog .", "usage"),
    ("compare peagle-tiny --share 50", "usage"),
    ("delete peagle-tiny", "usage"),
    ("fit gpt-oss-20b", "missing-option"),
    ("fit --gpu-memory-gib 80", "missing-option"),
    ("fit gpt-os-20b --gpu-memory-gib 80", "unknown-target"),
    ("fit gpt-oss-20b --instance-type ml.g6.xlarg", "instance-unknown"),
    ("fit gpt-oss-20b --gpu-memory-gib nan", "out-of-range"),
    ("fit gpt-oss-20b --gpu-memory-gib 0", "usage"),
    ("fit tiny --gpu l4", "usage"),
    ("logs x --since 5q", "usage"),
    ("plan tiny --budget nan", "out-of-range"),
    ("plan tiny --ttl soon", "usage"),
    ("plan tiny --startup-timeout 2h", "usage"),  # a key of peagle.yaml
    ("plan tiny --budget 1,00", "usage"),
    ("plan tiny --catalog folder", "usage"),
    ("plan tiny --contxt 8k", "usage"),
    ("plan tiny --env SM_VLLM_SPECULATIVE_CONFIG={}", "decided-by-plan"),
    ("plan tiny --env SM_VLLM_SEED=1", "decided-by-plan"),
    ("plan gpt-oss-20", "unknown-target"),
    ("plan gpt-oss-20b+p-eagel", "unknown-drafter"),
    ("plan gpt-oss-20b --instance-type ml.g6e.2xlarg", "instance-unknown"),
    ("plan gpt-oss-20b --name under_score", "invalid-name"),
    ("plan gpt-oss-20b --region us-esat-1", "region-unknown"),
    ("plan gpt-oss-20b --vllm 0.28.9", "runtime-unknown"),
    ("plan gpt-oss-20b --drafter ./nowhere", "no-such-folder"),
    ("plan tiny --markdown", "missing-option"),
    ("plan tiny --within 8h", "missing-option"),
    ("plan gpt-oss-20b --cached-prompt-tokens 2k", "out-of-range"),
    ("plan tiny --out plan.yaml", "usage"),
    ("plan tiny --concurency 2", "usage"),
    ("plan tiny --set =3", "invalid-argument"),
    ("plan tiny --set seed=1 --set SM_VLLM_SEED=2", "invalid-argument"),
    ("plan tiny --env NAME", "invalid-variable"),
    ("plan tiny --env A=1 --env A=2", "invalid-variable"),
    ("plan tiny --compare nothing", "unknown-target"),
    ("plan tiny --compare \"'a\"", "usage"),
    ("plan tiny --compare '--k 3'", "usage"),
    ("plan tiny --compare 'tiny --out x'", "usage"),
    ("plan tiny --compare nowhere.json", "plan-file"),
    ("plan ./nothere", "no-such-folder"),
    ("plan ./README.md", "not-a-folder"),
    ("plan models", "unknown-target"),
    ("plan tiny --context 8192", "usage"),
    ("pln", "usage"),
    ("scale x --target-concurrency many", "usage"),
    ("scale x --to 0", "usage"),
    ("update peagle-tiny", "usage"),
    ("verdict gpt-oss-20b --gpu H200 --prompt-tokens 8k", "missing-option"),
    ("verdict gpt-oss-20b --gpu H200 --output-tokens 8", "missing-option"),
    ("verdict gpt-oss-20b --gpu H200 --concurrency 1,x", "usage"),
    ("verdict gpt-oss-20b --gpu H200 --tp 0", "usage"),
    ("verdict gpt-oss-20b --instance-type ml.g5.48xlarge --gpu H200", "conflicting-options"),
    ("plan tiny --here --instance-type ml.g6.xlarge", "conflicting-options"),
    ("bench sweep tiny --instance-type=ml.g6.xlarge --here", "conflicting-options"),
    ("verdict ./models --gpu H100", "not-a-pair"),
    ("--catalog /nonexist list", "usage"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a file and two folders that are no models."""
    (tmp_path / "README.md").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("line", "code"), REFUSED)
def test_a_wrong_use_is_one_line_with_the_code_of_its_cause(line: str, code: str) -> None:
    done = in_process(*shlex.split(line), "--json")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert set(done.refusal) == {"code", "message", "fix", "command", "exit_code"}
    assert (done.refusal["code"], done.refusal["exit_code"]) == (code, 2)


@pytest.mark.parametrize(("line", "hint"), [
    ("depoly tiny", "deploy"),
    ("catalog refrsh", "refresh"),
    ("render cloudfromation tiny", "cloudformation"),
    ("render tiny terraform", "write peagle render [OPTIONS] FORMAT PAIR|PLAN"),
    ("train tiny plan --data x.jsonl", "write: peagle train plan tiny --data x.jsonl"),
    ("plan gpt-oss-21b", "gpt-oss-20b"),
    ("plan gpt-oss-20b+p-eagel", "p-eagle"),
    ("plan gpt-oss-20b --region us-esat-1", "us-east-1"),
    ("plan tiny --concurency 2", "--concurrency"),
    ("plan tiny --catalog .", "peagle --catalog DIR plan"),
    ("plan models", "./models"),
    ("plan tiny --drafter models", "./models"),
    ("plan tiny --workloads 8", "--workload"),
    ("plan gpt", "gpt-oss-20b"),
    ("check", "Missing argument 'PAIR'"),
    ("local up tiny --gpus", "add it, or omit --gpus"),
    ("local up tiny --engine docker --base x", "--base needs --build"),
    ("bench 127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
])  # fmt: skip
def test_a_hint_names_what_was_meant(line: str, hint: str) -> None:
    assert hint in in_process(*shlex.split(line)).error


@pytest.mark.thorough
def test_a_verdict_is_neither_a_plan_nor_a_result() -> None:
    assert in_process("verdict", "tiny", "--gpu", "L4", "-o", "v.json").code == 0
    assert in_process("plan", "tiny", "--out", "plan.json").code == 0
    assert "--verdict v.json" in in_process("plan", "v.json").err
    for file in ("v.json", "plan.json"):
        assert f"{file} holds no result" in in_process("bench", "report", file).err


@pytest.mark.parametrize(
    "words", [("fit", "--instance-type", "ml.g6.xlarge"), ("check",), ("catalog", "show")]
)
def test_a_command_without_plan_files_names_the_one_that_shows_them(words: tuple[str, ...]) -> None:
    assert in_process("plan", "tiny", "-o", "plan.json").code == 0
    done = in_process(*words, "plan.json", "--json")
    assert (done.code, done.refusal["code"]) == (2, "not-a-pair")
    assert "kv cache" in in_process(*done.refusal["command"][1:]).out.lower()
