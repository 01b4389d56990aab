"""``peagle invoke`` finds the engines of ``peagle local up`` by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.engine import state as records
from peagle.engine.local import start_local
from peagle.engine.process import stop_engine
from peagle.errors import EngineError, NotFound, UserError
from tests.support import raises_code
from tests.unit.local.conftest import NAME, PlanFor

pytestmark = pytest.mark.thorough


def _command(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
@pytest.mark.parametrize("kind", ["--chat", "--completion"])
def test_invoke_reaches_a_local_engine(
    engine_home: Path, plan_for: PlanFor, stream: str, kind: str
) -> None:
    start_local(plan_for())
    document = json.loads(_command("invoke", NAME, "Hi", stream, kind, "--json").stdout)
    shown = _command("invoke", NAME, "Hi", stream, kind)
    assert document["text"] == "Hello"
    assert document["output_tokens"] == 8
    assert document["acceptance_length"] == 2.5
    assert (document["first_token_seconds"] is not None) == (stream == "--stream")
    assert shown.stdout == "Hello\n"
    assert "8 tokens" in shown.stderr


def test_an_engine_that_has_ended_is_an_error(engine_home: Path, plan_for: PlanFor) -> None:
    stop_engine(start_local(plan_for()).process, 1.0)
    with raises_code("local-engine-not-ready", UserError):
        _command("invoke", NAME, "Hi")


def test_options_for_aws_ignore_local_engines(engine_home: Path, plan_for: PlanFor) -> None:
    start_local(plan_for())
    with pytest.raises(NotFound):
        _command("invoke", NAME, "Hi", "--sandbox")


def test_a_broken_stream_is_an_error(engine_home: Path, plan_for: PlanFor) -> None:
    engine = start_local(plan_for("broken-off"))
    with raises_code("incomplete-response", EngineError) as raised:
        _command("invoke", NAME, "Hi")
    assert raised.value.command == ("peagle", "local", "logs", NAME)
    assert records.read_local_engine(NAME) == engine
