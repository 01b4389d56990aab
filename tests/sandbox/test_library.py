"""``import peagle`` with an account: the examples of docs/library.md, and the Airflow tasks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import peagle
from peagle.errors import NotFound
from tests.examples import CHAPTER, WITH_ACCOUNT, run_examples
from tests.sandbox.sandboxes import Sandbox

pytestmark = pytest.mark.sandbox
DAG = CHAPTER.parents[1] / "infra" / "airflow" / "peagle_batch.py"


@pytest.fixture(autouse=True)
def _at_home(sandbox: Sandbox) -> Iterator[None]:
    with sandbox.at_home():
        yield


def test_the_examples_with_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, heading, rest = CHAPTER.read_text(encoding="utf-8").partition(WITH_ACCOUNT)
    assert run_examples(heading + rest, {"peagle": peagle}) > 15
    with pytest.raises(NotFound):
        peagle.Session(sandbox=True).destroy("peagle-tiny")


class _Result:
    """What a task of Airflow returns in a DAG; ``a >> b`` orders two."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __rshift__(self, after: _Result) -> _Result:
        return after


def _tasks(ran: list[tuple[str, Any]]) -> ModuleType:
    """``airflow.sdk``, whose tasks run in the sandbox as soon as the DAG names them."""

    def task(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        def run(*arguments: Any) -> _Result:
            assert function is not None
            values = [value.value if isinstance(value, _Result) else value for value in arguments]
            values = values or ["tiny"]
            result = function(*values, sandbox=True)
            ran.append((function.__name__, result))
            return _Result(result)

        return run if function else task_of

    def task_of(function: Callable[..., Any]) -> Any:
        return task(function)

    module = ModuleType("airflow.sdk")
    vars(module).update(task=task, dag=lambda **_: lambda function: function)
    return module


def test_the_dag_deploys_answers_and_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, Any]] = []
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", _tasks(ran))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    spec = importlib.util.spec_from_file_location("peagle_batch", DAG)
    assert spec
    assert spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    (deployed, name), (answered, answers), (destroyed, removed) = ran
    assert (deployed, answered, destroyed) == ("deploy", "answer", "destroy")
    assert name == "peagle-tiny"
    assert len(answers) == 2
    assert all(answers)
    assert removed > 3
    assert peagle.Session(sandbox=True).deployments() == []
