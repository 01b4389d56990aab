"""On 60 columns every line of a command fits, but words longer than that, and commands to copy."""

from __future__ import annotations

import pytest

from peagle import api
from peagle.catalog import load_catalog
from peagle.cli.output.answer import print_answer
from peagle.cli.output.console import folded, message_with_fix, print_line, print_status
from peagle.cli.output.weights import file_line, print_weights
from peagle.deploy import drift
from peagle.deploy.drift_fields import FieldDrift
from peagle.findings import Finding
from peagle.planning import Options, make_plan
from peagle.sandbox.client import EndpointStatus, Status
from peagle.weights.inspect import FileStatus, StoredWarmStart, StoredWeights
from peagle.weights.layout import WeightsPrefix
from peagle.weights.manifest import FileEntry, FolderEntry
from tests.unit.cli.commands import FIRST, NAME, Terminal

WIDTH = 60
LABEL = 16
LONG = "a-very-long-name-that-a-user-gave-to-an-endpoint-in-europe"
COMMAND = f"peagle destroy {LONG} --sandbox --yes"


@pytest.fixture
def narrow(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr("peagle.cli.output.console.stderr_width", lambda: WIDTH)
    return terminal


def too_long(text: str) -> list[str]:
    """Lines that are too wide without a command, and without a word that fits beside no label."""
    wide = [line for line in text.splitlines() if len(line) > WIDTH and "peagle " not in line]
    return [line for line in wide if max(map(len, line.split())) <= WIDTH - LABEL]


@pytest.mark.parametrize(
    "line",
    [
        "plan gpt-oss-120b",
        "plan gpt-oss-20b",
        "plan gpt-oss-20b --verbose",
        "catalog list",
        "catalog check",
        "catalog show gpt-oss-120b",
        "check gpt-oss-20b",
        "fit gpt-oss-20b --instance-type ml.g7e.2xlarge",
        "engine status",
        "local list",
        "--help",
        "sandbox --help",
    ],
)
@pytest.mark.thorough
def test_commands_without_an_account_fit(narrow: Terminal, line: str) -> None:
    done = narrow.run(*line.split())

    assert done.out + done.err
    assert too_long(done.out + done.err) == []


@pytest.mark.parametrize("name", [NAME, LONG])
@pytest.mark.thorough
def test_the_commands_of_a_deployment_fit(narrow: Terminal, name: str) -> None:
    deployed = narrow.run(*FIRST, "--name", name, "--yes")
    assert deployed.code == 0
    *texts, _ = deployed.out.partition("import boto3")[0].splitlines()
    assert too_long("\n".join(texts)) == []

    for command in ("list", f"status {name}", f"prove {name}", f"drift {name}", "reap"):
        done = narrow.run(*command.split())
        assert done.code == 0, command
        assert too_long(done.out + done.err) == [], command

    removed = narrow.run("destroy", name, "--yes", "--all")
    assert removed.code == 0
    assert too_long(removed.out + removed.err) == []


@pytest.mark.thorough
def test_a_name_as_long_as_the_terminal_is_listed_above_its_state(narrow: Terminal) -> None:
    assert narrow.run(*FIRST, "--name", LONG, "--yes").code == 0

    lines = narrow.run("list").out.splitlines()

    assert lines[0] == "NAME"
    assert lines[2] == LONG
    assert lines[3].split()[0] == "InService"


@pytest.mark.thorough
def test_status_shows_the_command_of_a_fix_in_one_line(
    narrow: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert narrow.run(*FIRST, "--yes").code == 0
    failure = {"failure_fix": "continue it", "failure_command": tuple(COMMAND.split())}
    read = api.deployment_status
    monkeypatch.setattr(
        "peagle.api.deployment_status", lambda *given: read(*given) | failure, raising=False
    )

    shown = narrow.run("status", NAME).out

    assert f"  fix           continue it:\n{' ' * LABEL}{COMMAND}\n" in shown


@pytest.mark.thorough
def test_a_drift_that_is_too_wide_for_a_table_has_a_line_for_each_value(
    narrow: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert narrow.run(*FIRST, "--yes").code == 0
    planned = "arn:aws:iam::123456789012:role/one"
    field = FieldDrift("configuration.execution_role", planned, f"{planned}-changed")
    found = drift.Drift(NAME, "us-east-1", (field,), ("configuration",), {})
    monkeypatch.setattr("peagle.api.find_drift", lambda *_: found, raising=False)

    shown = narrow.run("drift", NAME).out

    assert f"configuration.execution_role\n  planned  {planned}\n  found    {planned}-c" in shown
    assert too_long(shown) == []


def test_the_reason_of_a_failed_endpoint_in_the_sandbox_is_folded(
    narrow: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "The primary container did not pass the ping health check. Look at the logs. " * 2
    failed = EndpointStatus(LONG, "us-east-1", "Failed", reason, "peagle/tiny", None, None, None)
    status = Status(True, "http://127.0.0.1:42077", 17629, 1.0, (failed,))
    monkeypatch.setattr("peagle.api.sandbox_status", lambda: status, raising=False)

    shown = narrow.run("sandbox", "status").out

    assert too_long(shown) == []
    assert " ".join(shown.split()).count("did not pass the ping health check") == 2


def test_the_command_of_a_fix_is_in_one_line() -> None:
    message = "vLLM 0.28.0 is not installed on this machine"
    command = ("peagle", "engine", "install", "--vllm", "0.28.0")

    lines = message_with_fix(message, "install it", command, WIDTH).split("\n")

    assert lines == [message, "install it: peagle engine install --vllm 0.28.0"]


def test_a_finding_in_the_answer_of_a_plan_breaks_no_command(
    narrow: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Finding(
        level="error", code="x", where="k", message="it is too large for that head",
        fix="repeat it", command=tuple(COMMAND.split()),
    )  # fmt: skip
    plan = make_plan(Options(pair="tiny"), load_catalog())

    print_answer(plan.model_copy(update={"findings": (found,)}), None, verbose=False)

    shown = capsys.readouterr().out
    assert f"\n            {COMMAND}\n" in shown
    assert too_long(shown) == []


def test_weights_list_keeps_keys_and_checksums_whole(
    narrow: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    place = WeightsPrefix("models-of-our-department", f"{'a-folder/' * 6}")
    name = "a-long-folder/model-00001-of-00005.safetensors"
    file = FileStatus(name, "whole", 15_000_000_000, 15_000_000_000, "SHA256:" + "ab" * 22)
    folder = FolderEntry("acme/chat", True, {name: FileEntry(file.size)}, "acme/chat+head")
    warm = StoredWarmStart("k" * 32, {"a": 10}, complete=True, pair="acme/chat", k=0,
                           device="A10G", made="2026-11-21", seconds_cold=70.4)  # fmt: skip
    others = {f"{place.key}{'notes/' * 8}of-another-tool.txt": 7}

    files = {"target": (file,)}
    print_weights(StoredWeights(place, {"target": folder}, files, others, (), (warm,)), None)

    shown = capsys.readouterr().out
    assert too_long(shown) == []
    assert {name, file.checksum, "k" * 32, f"{'notes/' * 8}of-another-tool.txt"} <= {*shown.split()}


def test_a_file_fits_beside_its_size_and_checksum_on_a_wide_terminal() -> None:
    file = FileStatus("model.safetensors", "whole", 34, 34, "ab" * 32)

    assert file_line(file, 120).endswith(f"34  model.safetensors  {'ab' * 32}")
    assert [len(line) for line in file_line(file, WIDTH).split("\n")] == [46, 68]


def test_a_command_has_its_own_line_where_it_does_not_fit(
    narrow: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    print_line("Left: LogGroup x; to remove this too", COMMAND)
    print_status("Resume", "peagle weights sync tiny")

    shown = capsys.readouterr()
    assert shown.out == f"Left: LogGroup x; to remove this too:\n  {COMMAND}\n"
    assert shown.err == "Resume: peagle weights sync tiny\n"


def test_lines_that_fit_stay_as_they_are() -> None:
    table = "a  b\n1   2"

    assert folded(table, "", WIDTH) == table
    assert folded("  one two three", "", 10) == "  one two\n    three"
