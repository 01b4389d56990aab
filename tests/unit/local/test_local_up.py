"""`peagle local`: start, proof and stop of an engine, as a function and as commands."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peagle.bench.targets import open_engine
from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.engine import state as records
from peagle.engine.local import ask, start_local, stop_local
from peagle.engine.process import is_alive, is_port_free, stop_engine
from peagle.engine.runner import LocalRunner
from peagle.engine.state import local_engines
from peagle.errors import CheckpointError, EngineError, NotFound, NotProved, Refused, UserError
from peagle.findings import note
from peagle.images.build import findings_on_this_machine
from peagle.images.docker import Image
from peagle.planning import Options, Plan, make_plan
from peagle.render.plan_file import plan_bytes
from tests.support import Peagle, raises_code
from tests.unit.checks.damage import tiny
from tests.unit.local.conftest import NAME, Command, PlanFor, processes_with


@pytest.mark.thorough
def test_up_list_and_down(engine_home: Path, command: Command) -> None:
    up = command("local", "up", "tiny", "--name", NAME)
    assert "acceptance length 2.50 over 8 drafts" in up.stdout
    (engine,) = local_engines()
    assert (engine.state, engine.acceptance_length) == ("ready", 2.5)
    assert engine.openai_base_url == f"http://127.0.0.1:{engine.process.port}/v1"
    assert engine.openai_base_url in up.stdout
    assert NAME in command("local", "status").stdout
    again = json.loads(command("local", "up", "tiny", "--name", NAME, "--json").stdout)
    assert (again["state"], again["pid"]) == ("ready", engine.process.pid)
    assert json.loads(command("local", "list", "--json").stdout) == {"engines": [again]}
    received = json.loads((records.locate_folder(NAME) / "given.json").read_text())
    target = Path(received["argv"][received["argv"].index("--model") + 1])
    assert (target / "config.json").is_file()
    assert command("local", "down", NAME).stdout.split() == ["ended", NAME, "removed", NAME]
    assert not is_alive(engine.process)
    assert is_port_free(engine.process.port)
    assert not records.locate_folder(NAME).exists()
    assert command("local", "list").stdout == ""


@pytest.mark.parametrize("engine_kind", ["process", "docker"])
def test_only_findings_about_any_engine_are_shown(engine_kind: str) -> None:
    plan = make_plan(Options(pair="tiny"), load_catalog())
    about_any_engine = {"dynamic-k", "head-not-read", "lora", "weights-unread"}
    about_sagemaker = {"ami-unverified", "gpus-idle", "limit-before-start", "price-unknown"}
    findings = tuple(
        note(code, "anything", "message", "fix") for code in about_any_engine | about_sagemaker
    )
    shown = findings_on_this_machine(plan.model_copy(update={"findings": findings}), engine_kind)
    assert {finding.code for finding in shown} == about_any_engine


@pytest.mark.thorough
def test_a_plan_file_can_be_run(engine_home: Path, command: Command, plan_for: PlanFor) -> None:
    plan = plan_for(k=3)
    environment = {
        name: value for name, value in plan.environment.items() if name != "SAGEMAKER_STAND_IN"
    }
    file = engine_home / "plan.json"
    file.write_bytes(plan_bytes(plan.model_copy(update={"environment": environment})))
    command("local", "up", str(file))
    (running,) = local_engines()
    assert '"num_speculative_tokens":3' in running.environment["SM_VLLM_SPECULATIVE_CONFIG"]
    ended = json.loads(command("local", "down", "--all", "--json").stdout)
    assert ended == {"ended": [running.name], "removed": [running.name]}


@pytest.mark.thorough
def test_logs_are_followed_to_the_end_and_down_reports_draining(
    engine_home: Path, peagle: Peagle, plan_for: PlanFor
) -> None:
    start_local(plan_for())
    argv = [sys.executable, "-m", "peagle.cli", "local", "logs", NAME, "-f"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout is not None
        try:
            while "beginning" not in follow.stdout.readline():
                assert follow.poll() is None
            waited = peagle("local", "down", NAME)
            start_local(plan_for())  # the engine that is followed is not this one
            assert (waited.returncode, follow.wait(timeout=30)) == (0, 0)
        finally:  # else a failure waits for its end
            follow.kill()
    at_once = peagle("local", "down", NAME, "--now")
    assert f"waiting for running requests of {NAME}" in waited.stderr
    assert at_once.stderr == ""


@pytest.mark.parametrize("words", [("down", "nothing"), ("logs", "nothing"), ("down", "../x")])
def test_an_unknown_name_is_an_error(own_home: Path, command: Command, words: tuple[str]) -> None:
    with pytest.raises(NotFound):
        command("local", *words)


DAMAGED = {
    "cut off": '{"name": "old", "pai',
    "another shape": "[1]",
    "an incomplete process": (
        '{"name": "old", "pair": "p", "served_as": "t", "vllm": "1", "environment": {}, '
        '"notes": [], "process": {"pid": 1}, "started_at": 1.0}'
    ),
    "not text": "\x00",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_named(own_home: Path, peagle: Peagle, content: str) -> None:
    record = own_home / "local" / "old" / "state.json"
    record.parent.mkdir(parents=True)
    record.write_text(content)
    for words in (("local", "list"), ("local", "down", "old"), ("invoke", "old", "Hi")):
        done = peagle(*words, "--json")
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["code"]) == (2, "record-damaged"), words
        assert str(record) in error["message"]
    assert record.read_text() == content


@pytest.mark.thorough
def test_one_engine_of_a_name_runs(engine_home: Path, plan_for: PlanFor) -> None:
    refused: list[UserError] = []

    def again(step: str, line: str) -> None:
        if not refused:
            with pytest.raises(UserError) as raised:
                start_local(plan_for())
            refused.append(raised.value)

    first = start_local(plan_for(), progress=again)
    assert refused
    for plan, port in ((plan_for(k=3), None), (plan_for(), 1)):
        with raises_code("already-running", UserError):
            start_local(plan, port=port)
    assert local_engines() == (first,)
    assert is_alive(first.process)


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "kind", "code", "message"), [
    ("crash", EngineError, "engine-exited", "the head and the target are incompatible"),
    ("refusing", NotProved, "not-proved", "1.00 over 16 drafts"),
    ("deaf", EngineError, "startup-timeout", ""),
])  # fmt: skip
def test_an_engine_that_fails_is_ended_and_its_log_is_kept(
    engine_home: Path, plan_for: PlanFor, how: str, kind: type[EngineError], code: str, message: str
) -> None:
    plan = plan_for(how)
    if how == "deaf":
        plan = plan.model_copy(update={"startup_timeout_seconds": 1})
    with raises_code(code, kind) as caught:
        start_local(plan)
    assert message in caught.value.message
    assert local_engines() == ()
    assert processes_with(str(engine_home)) == []
    assert records.log_of(NAME).is_file()


@pytest.mark.thorough
def test_ctrl_c_ends_the_engine(engine_home: Path, plan_for: PlanFor) -> None:
    program = (
        "import sys; from peagle.engine.local import start_local; "
        "from peagle.planning import Plan; start_local(Plan.model_validate_json(sys.argv[1]))"
    )
    argv = [sys.executable, "-c", program, plan_for("deaf").model_dump_json()]
    starter = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    while not local_engines():
        assert starter.poll() is None
        time.sleep(0.02)
    starter.send_signal(signal.SIGINT)
    assert starter.wait(10) != 0
    assert local_engines() == ()
    assert processes_with(str(engine_home)) == []


@pytest.mark.thorough
def test_without_speculation_an_answer_is_enough(engine_home: Path, command: Command) -> None:
    assert "responds." in command("local", "up", "tiny", "--no-speculation", "--name", NAME).stdout
    (engine,) = local_engines()
    assert (engine.state, engine.acceptance_length) == ("ready", None)


def test_down_during_the_start_ends_up_with_an_error(engine_home: Path, plan_for: PlanFor) -> None:
    def stop(step: str, line: str) -> None:
        if records.local_engine_names():
            stop_local(NAME)

    with raises_code("startup-stopped", EngineError):
        start_local(plan_for("deaf"), progress=stop)


def test_a_port_in_use_is_an_error(engine_home: Path, plan_for: PlanFor) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with raises_code("port-in-use", UserError):
            start_local(plan_for(), port=listener.getsockname()[1])


def test_a_plan_that_cannot_run_here_is_refused_with_the_fix(
    engine_home: Path, plan_for: PlanFor
) -> None:
    stored = {"model_source": "s3://bucket/tiny/target/", "weights_by": "stream"}
    for options, why in (
        ({"pair": "gpt-oss-20b"}, "only local weights run, not its target (openai/gpt-oss-20b)"),
        (stored, "only AWS can read s3://bucket/tiny/target/"),
    ):
        with raises_code("not-runnable-here", Refused) as caught:
            start_local(plan_for(**options))
        assert why in caught.value.message
        assert caught.value.command[:2] == ("peagle", "deploy")
    plan = plan_for()
    for name in ("LD_PRELOAD", "PYTHONPATH", "SM_VLLM_MIDDLEWARE"):
        hostile = plan.model_copy(update={"environment": {**plan.environment, name: "/tmp/x"}})
        with raises_code("code-variable", Refused):
            start_local(hostile)
    assert records.local_engine_names() == ()


def test_a_folder_without_weights_is_named(engine_home: Path, command: Command) -> None:
    model = shutil.copytree(tiny("target"), engine_home / "model")
    (model / "model.safetensors").unlink()
    with raises_code("weights-missing", CheckpointError) as caught:
        command("local", "up", str(model))
    assert str(model) in caught.value.message
    assert not (engine_home / "ml").exists(), "nothing was started"


@pytest.mark.thorough
def test_the_state_of_an_engine_is_private(engine_home: Path, plan_for: PlanFor) -> None:
    engine_home.chmod(0o755)
    start_local(plan_for())
    folder = records.locate_folder(NAME)
    paths = [path for path in (engine_home, folder, *folder.iterdir()) if not path.is_symlink()]
    assert {path.name for path in paths} > {"engine.log", "state.json"}
    assert [path for path in paths if path.stat().st_mode & 0o077] == []


# ``peagle invoke`` finds the engines of ``peagle local up`` by their names.
def _command(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)


@pytest.mark.thorough
@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
@pytest.mark.parametrize("kind", ["--chat", "--completion"])
def test_invoke_reaches_a_local_engine(
    engine_home: Path, plan_for: PlanFor, stream: str, kind: str
) -> None:
    start_local(plan_for())
    document = json.loads(_command("invoke", NAME, "Hi", stream, kind, "--json").stdout)
    shown = _command("invoke", "local", "Hi", stream, kind)
    assert document["text"] == "Hello"
    assert document["output_tokens"] == 8
    assert document["acceptance_length"] == 2.5
    assert (document["first_token_seconds"] is not None) == (stream == "--stream")
    assert shown.stdout == "Hello\n"
    assert "8 tokens" in shown.stderr


@pytest.mark.thorough
def test_an_engine_that_has_ended_is_an_error(engine_home: Path, plan_for: PlanFor) -> None:
    stop_engine(start_local(plan_for()).process, 1.0)
    with raises_code("local-engine-not-ready", UserError):
        _command("invoke", NAME, "Hi")
    assert "OutOfMemoryError" not in _command("local", "list").stderr
    with records.log_of(NAME).open("a") as log:
        log.write("(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory.\n")
    assert "OutOfMemoryError" in _command("local", "list").stderr
    with raises_code("local-engine-not-ready", UserError) as raised:
        _command("invoke", NAME, "Hi")
    assert "OutOfMemoryError" in raised.value.fix


CORE_ENDED = "(APIServer pid=7) WARNING [core_client.py:728] engine core exited unexpectedly\n"


@pytest.mark.thorough
def test_a_killed_core_is_named_while_the_engine_restarts(
    engine_home: Path, plan_for: PlanFor, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_local(plan_for())
    server = open_engine(engine, load_catalog()).server
    assert server.fix.command == ("peagle", "local", "logs", NAME)
    with records.log_of(NAME).open("a") as log:
        log.write(CORE_ENDED)
    (healthy,) = json.loads(command("local", "list", "--json").stdout)["engines"]
    assert (healthy["state"], healthy["crash"]) == ("ready", None)
    monkeypatch.setattr("peagle.cli.local.is_healthy", lambda port: False)
    (document,) = json.loads(command("local", "list", "--json").stdout)["engines"]
    assert (document["state"], document["crash"]["cause"]) == ("restarting", "killed")
    assert "signal 9" in command("local", "status").stderr
    assert "signal 9" in server.fix.sentence
    stop_engine(engine.process, 1.0)
    with raises_code("no-answer", EngineError) as raised:
        ask(engine.process.port, {"prompt": "Hi"})
    assert "signal 9" in raised.value.fix


@pytest.mark.thorough
def test_prove_proves_a_local_engine_without_aws(
    engine_home: Path, plan_for: PlanFor, command: Command
) -> None:
    start_local(plan_for())
    proof = json.loads(command("prove", NAME, "--min-drafts", "8", "--json").stdout)
    assert (proof["acceptance_length"], proof["floor_source"]) == (2.5, "catalogue")
    assert (proof["name"], proof["region"], proof["passed"]) == (NAME, None, True)
    with pytest.raises(NotProved):
        command("prove", "local", "--min-drafts", "8", "--floor", "3")


@pytest.mark.thorough
def test_options_for_aws_ignore_local_engines(engine_home: Path, plan_for: PlanFor) -> None:
    start_local(plan_for())
    with pytest.raises(NotFound):
        _command("invoke", NAME, "Hi", "--sandbox")


@pytest.mark.thorough
def test_a_broken_stream_is_an_error(engine_home: Path, plan_for: PlanFor) -> None:
    engine = start_local(plan_for("broken-off"))
    with raises_code("incomplete-response", EngineError) as raised:
        _command("invoke", NAME, "Hi")
    assert raised.value.command == ("peagle", "local", "logs", NAME)
    assert records.read_local_engine(NAME) == engine


# A plan whose weights are in its image, on this machine: only a container has them.
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:0.28.0"


@pytest.fixture
def plan() -> Plan:
    return make_plan(Options(pair="tiny", image=IMAGE, baked_weights=True), load_catalog())


def test_a_process_refuses_baked_weights(plan: Plan) -> None:
    with raises_code("weights-baked", Refused) as refused:
        LocalRunner().local_environment(plan)
    assert "--engine docker" in refused.value.fix


@pytest.mark.parametrize("labels", [{"peagle.weights": "baked"}, {}])
def test_a_baked_image_gets_no_weights_mounted(
    plan: Plan, own_home: Path, labels: dict[str, str]
) -> None:
    image = Image("mine", "sha256:1", "", "", "", "", 1, None, "10001", labels, ())
    host = LocalRunner(image)
    assert host.container(plan, plan.environment, 8000).mounts == {}
