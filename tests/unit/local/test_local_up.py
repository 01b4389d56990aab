"""`peagle local`: start, proof and stop of an engine."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peagle.engine import state as records
from peagle.engine.local import start_local, stop_local
from peagle.engine.process import is_alive, is_port_free
from peagle.engine.state import local_engines
from peagle.errors import EngineError, NotFound, NotProved, Refused, UserError
from peagle.planning import Plan
from tests.support import raises_code
from tests.unit.local.conftest import NAME, PlanFor, processes_with


@pytest.mark.thorough
def test_up_runs_the_plan_and_measures_acceptance(engine_home: Path, plan_for: PlanFor) -> None:
    engine = start_local(plan_for())

    assert engine.state == "ready"
    assert engine.acceptance_length == 2.5
    assert engine.drafts == 16
    assert engine.openai_base_url == f"http://127.0.0.1:{engine.process.port}/v1"
    assert local_engines() == (engine,)


@pytest.mark.thorough
def test_the_weights_are_at_the_paths_of_the_plan(engine_home: Path, plan_for: PlanFor) -> None:
    start_local(plan_for())

    given = json.loads((records.folder_of(NAME) / "given.json").read_text())
    target = Path(given["argv"][given["argv"].index("--model") + 1])
    assert (target / "config.json").is_file()
    speculation = json.loads(given["argv"][given["argv"].index("--speculative-config") + 1])
    assert (Path(speculation["model"]) / "config.json").is_file()


@pytest.mark.thorough
def test_up_with_another_plan_is_refused(engine_home: Path, plan_for: PlanFor) -> None:
    first = start_local(plan_for())

    with raises_code("already-running", UserError) as caught:
        start_local(plan_for(k=3))
    assert "with a different plan" in caught.value.message
    with raises_code("already-running", UserError) as caught:
        start_local(plan_for(), port=1)
    assert f"on port {first.process.port}" in caught.value.message
    assert is_alive(first.process)


@pytest.mark.thorough
def test_down_ends_the_engine_and_leaves_nothing(engine_home: Path, plan_for: PlanFor) -> None:
    engine = start_local(plan_for())

    assert stop_local(NAME) == engine

    assert not is_alive(engine.process)
    assert is_port_free(engine.process.port)
    assert not records.folder_of(NAME).exists()
    with pytest.raises(NotFound):
        stop_local(NAME)


@pytest.mark.thorough
def test_a_crash_at_start_is_reported_at_once(engine_home: Path, plan_for: PlanFor) -> None:
    times: list[float] = []

    def progress(step: str, line: str) -> None:
        times.append(time.monotonic())

    with raises_code("engine-exited", EngineError) as caught:
        start_local(plan_for("crash"), progress=progress)

    assert "the head and the target are incompatible" in caught.value.message
    assert time.monotonic() - times[-1] < 5
    assert local_engines() == ()
    assert "incompatible" in records.log_of(NAME).read_text()


@pytest.mark.thorough
def test_an_engine_that_accepts_no_draft_is_refused(engine_home: Path, plan_for: PlanFor) -> None:
    with raises_code("not-proved", NotProved) as caught:
        start_local(plan_for("refusing"))

    assert "1.00 over 16 drafts" in caught.value.message
    assert local_engines() == ()
    assert processes_with(str(engine_home)) == []


@pytest.mark.thorough
def test_without_speculation_an_answer_is_enough(engine_home: Path, plan_for: PlanFor) -> None:
    engine = start_local(plan_for(speculation=False))

    assert engine.state == "ready"
    assert engine.acceptance_length is None


@pytest.mark.thorough
def test_an_engine_that_never_answers_times_out(engine_home: Path, plan_for: PlanFor) -> None:
    plan = plan_for("deaf").model_copy(update={"startup_timeout_seconds": 1})

    with raises_code("startup-timeout", EngineError):
        start_local(plan)

    assert processes_with(str(engine_home)) == []


def starting(plan: Plan) -> subprocess.Popen[bytes]:
    """A process that does ``up`` and has just begun an engine."""
    program = (
        "import sys; from peagle.engine.local import start_local; "
        "from peagle.planning import Plan; start_local(Plan.model_validate_json(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, plan.model_dump_json()]
    starter = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not local_engines():
        assert starter.poll() is None
        time.sleep(0.02)
    return starter


@pytest.mark.thorough
def test_ctrl_c_ends_the_engine(engine_home: Path, plan_for: PlanFor) -> None:
    starter = starting(plan_for("deaf"))

    starter.send_signal(signal.SIGINT)

    assert starter.wait(10) != 0
    assert local_engines() == ()
    assert processes_with(str(engine_home)) == []


def test_down_during_the_start_ends_up_with_an_error(engine_home: Path, plan_for: PlanFor) -> None:
    def stop(step: str, line: str) -> None:
        if records.local_engine_names():
            stop_local(NAME)

    with raises_code("startup-stopped", EngineError):
        start_local(plan_for("deaf"), progress=stop)


@pytest.mark.thorough
def test_concurrent_commands_start_one_engine(engine_home: Path, plan_for: PlanFor) -> None:
    refused: list[UserError] = []

    def again(step: str, line: str) -> None:
        if not refused:
            with pytest.raises(UserError) as raised:
                start_local(plan_for())
            refused.append(raised.value)

    start_local(plan_for(), progress=again)

    assert refused
    assert len(local_engines()) == 1


def test_a_port_in_use_is_an_error_with_the_option(engine_home: Path, plan_for: PlanFor) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        with raises_code("port-in-use", UserError) as caught:
            start_local(plan_for(), port=port)

        assert str(port) in caught.value.message
        assert "--port" in caught.value.fix


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ("gpt-oss-20b", "its target (openai/gpt-oss-20b) would have to be downloaded"),
        ("qwen3-8b", "would have to be downloaded"),
    ],
)
def test_a_plan_that_cannot_run_here_is_refused_with_the_fix(
    engine_home: Path, plan_for: PlanFor, pair: str, why: str
) -> None:
    with raises_code("not-runnable-here", Refused) as caught:
        start_local(plan_for(pair=pair))

    assert why in caught.value.message
    assert caught.value.command[:2] == ("peagle", "deploy")
    assert caught.value.command[-1] == "--sandbox"
    assert records.local_engine_names() == ()


def test_a_variable_that_chooses_the_engines_code_is_refused(
    engine_home: Path, plan_for: PlanFor
) -> None:
    plan = plan_for()
    for name in ("LD_PRELOAD", "PYTHONPATH", "SM_VLLM_MIDDLEWARE"):
        hostile = plan.model_copy(update={"environment": {**plan.environment, name: "/tmp/x"}})
        with raises_code("code-variable", Refused) as caught:
            start_local(hostile)
        assert caught.value.message.startswith(f"{name}: ")
    assert local_engines() == ()


@pytest.mark.thorough
def test_the_state_of_an_engine_is_private(engine_home: Path, plan_for: PlanFor) -> None:
    engine_home.chmod(0o755)
    start_local(plan_for())
    folder = records.folder_of(NAME)
    ours = [path for path in (engine_home, folder, *folder.iterdir()) if not path.is_symlink()]
    assert {path.name for path in ours} > {"engine.log", "state.json"}
    assert [path for path in ours if path.stat().st_mode & 0o077] == []
