"""The library: its examples, its names, what importing it loads, and what its docstrings say."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import peagle
from peagle.errors import NotFound, Refused, UserError
from tests.examples import CHAPTER, WITH_ACCOUNT, run_examples
from tests.support import raises_code

METHODS = {
    name: value
    for name, value in inspect.getmembers(peagle.Session, inspect.isfunction)
    if not name.startswith("_") and value.__qualname__.startswith("Session.")
}


@pytest.mark.thorough
def test_the_examples_without_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, _, _ = CHAPTER.read_text(encoding="utf-8").partition(WITH_ACCOUNT)
    assert run_examples(before, {}) > 10
    assert (tmp_path / "stack" / "template.yaml").is_file()


def test_importing_it_loads_no_library() -> None:
    program = "import sys, peagle; peagle.__all__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {"boto3", "botocore", "click", "pydantic", "yaml"} & set(done.stdout.split()) == set()


def test_the_chapter_names_every_name_and_method() -> None:
    _, _, names = CHAPTER.read_text(encoding="utf-8").partition("## Names")
    public = {*peagle.__all__, *METHODS, "catalog"}
    assert [name for name in sorted(public) if f"`{name}`" not in names] == []


def test_an_unknown_option_names_the_nearest() -> None:
    session = peagle.Session()
    for call in (session.plan, session.check, session.fit):
        with raises_code("unknown-option", UserError) as refused:
            call("tiny", vlm="0.28.0")
        assert "vllm" in refused.value.fix
    with raises_code("unknown-option", UserError):
        session.plan("tiny", chosen_by="me")


def test_a_value_of_another_type_is_refused() -> None:
    session = peagle.Session()
    calls: tuple[Callable[[Any], Any], ...] = (
        session.plan,
        session.check,
        lambda value: session.verdict("tiny", gpu=value),
        lambda value: session.check("tiny", target=value),
    )
    for call in calls:
        with pytest.raises(UserError, match="cannot be"):
            call(5)


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    session = peagle.Session()
    impossible = session.plan("gpt-oss-120b", instance_type="ml.g6.xlarge")
    assert repr(impossible).startswith("<Plan peagle-gpt-oss-120b: openai/gpt-oss-120b")
    for call in (session.save_plan, lambda plan, at: session.render("terraform", plan, at)):
        with pytest.raises(Refused):
            call(impossible, tmp_path / "plan")
    with raises_code("missing-option", UserError):
        session.verdict("tiny")
    with raises_code("missing-option", UserError):
        session.verdict("tiny", gpu="L4", prompt_tokens=100)
    with raises_code("unknown-target", NotFound) as unread:
        session.plan("some/model")
    assert "online=True" in unread.value.fix
    with raises_code("conflicting-options", UserError):
        peagle.Session(profile="mine", sandbox=True).connect()


@pytest.mark.thorough
def test_a_plan_that_cannot_be_saved_is_an_error_of_the_user(tmp_path: Path) -> None:
    session = peagle.Session()
    plan = session.plan("tiny", instance_type="ml.g6.xlarge")
    with raises_code("not-writable", UserError):
        session.save_plan(plan, tmp_path / "missing" / "plan.json")
    session.save_plan(plan, tmp_path / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(("method", "options", "fix"), [
    ("plan", {"workload": "chats"}, "'chat', 'agent', 'rag' or 'batch'"),
    ("plan", {"k": "7"}, "integer"),
    ("plan", {"slo": 5}, "Slo"),
    ("check", {"vllm": 0.28}, "string"),
    ("fit", {"gpu_memory_gib": "24 GiB"}, "number"),
    ("verdict", {"gpu": "L4", "workload": "chats"}, "'chat', 'agent', 'rag' or 'batch'"),
])  # fmt: skip
def test_a_value_of_another_type_names_what_is_valid(
    method: str, options: dict[str, Any], fix: str
) -> None:
    with raises_code("usage", UserError) as raised:
        getattr(peagle.Session(), method)("tiny", **options)
    assert fix in raised.value.fix
