"""``peagle sandbox fault`` and ``quota`` without a running sandbox: usage, completion, errors."""

from pathlib import Path

import click
import pytest

from peagle.cli.local import add, fault
from peagle.cli.main import cli
from tests.support import run_in_process

ADD = ("sandbox", "fault", "add")


@pytest.mark.parametrize(("arguments", "expected"), [
    ((*ADD, "CreateEndpoint", "broken"), "'broken' is not one of"),
    ((*ADD, "CreateEndpoint", "throttling", "--times", "0"), "a number above 0"),
    ((*ADD, "CreateEndpoint", "throttling", "--times", "often"), "'often' is not once"),
    ((*ADD, "CreateEndpoint", "throttling"), "the sandbox is not running"),
    ((*ADD, "CreateEndpoint", "out-of-service", "--instance-type", "ml.g5.lage"), "ml.g5.xlarge"),
    (("sandbox", "fault", "list"), "the sandbox is not running"),
    (("sandbox", "quota", "set", "ml.g5.xlarge", "many"), "'many' is not a valid integer"),
    (("sandbox", "quota", "list"), "the sandbox is not running"),
])  # fmt: skip
def test_a_mistake_is_named(own_home: Path, arguments: tuple[str, ...], expected: str) -> None:
    done = run_in_process(*arguments)
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.split())


@pytest.mark.thorough
def test_kinds_are_completed() -> None:
    context = click.Context(fault, **cli.context_settings)
    kind = add.params[1]
    assert [item.value for item in kind.shell_complete(context, "stuck")] == ["stuck-creating"]
