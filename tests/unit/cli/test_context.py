"""Printed commands keep the user's options and are what the user would have to type."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.cli.account import Account
from peagle.cli.context import command_text, in_context, typed_command
from peagle.cli.main import cli
from peagle.data import data_folder
from peagle.render import read_plan
from tests.support import examples, in_process
from tests.unit.cli.commands import NAME, Terminal

NASTY = [
    "two words",
    "it's",
    '"quoted"',
    "$HOME",
    "`ls`",
    "a;b&c|d",
    "*",
    "日本語 🦅",
    "-dash",
    "\\n",
    "#",
]
VALUE = st.one_of(st.sampled_from(NASTY), st.text(" '\"$`\\;&|*?#~=-üß🦅ab", min_size=1))
OPTIONS = ("--name", "--role", "--bucket", "--profile", "--drafter", "--region", "--model-source")
QUIET = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def parsed(words: list[str]) -> click.Context:
    """The context of a complete command line, without running it."""
    end = 2 if words[:1] == ["--catalog"] else 0
    root = cli.make_context("peagle", words[: end + 1])
    name, *rest = words[end:]
    command = cli.get_command(root, name)
    assert command is not None
    return command.make_context(name, rest, parent=root)


@pytest.mark.thorough
@given(pair=VALUE, options=st.dictionaries(st.sampled_from(OPTIONS), VALUE), flag=st.booleans())
@QUIET
def test_a_typed_command_survives_the_shell(
    pair: str, options: dict[str, str], flag: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "my $HOME's catalogue"
    folder.mkdir(exist_ok=True)
    typed = [word for flag_value in options.items() for word in flag_value]
    words = [
        "--catalog",
        str(folder),
        "deploy",
        *typed,
        *(["--no-wait"] if flag else []),
        "--",
        pair,
    ]
    context = parsed(words)

    again = typed_command(context, "deploy")

    assert again[:3] == ("peagle", "--catalog", str(folder))
    assert shlex.split(shlex.join(again)) == list(again)
    assert parsed(list(again[1:])).params == context.params


def test_control_characters_of_a_command_are_escaped_for_the_terminal_and_the_shell() -> None:
    value = "A=x\a'y\\z\x1b[2J\u00e9"
    shown = in_process("plan", "tiny", "--env", value).out
    line = next(line for line in shown.splitlines() if line.startswith("Next:"))

    assert line.isprintable()
    words = line.removeprefix("Next: ")
    done = subprocess.run(
        ["bash", "-c", f"printf %s\\\\n {words}"], capture_output=True, check=True
    )
    assert value in done.stdout.decode().splitlines()


@pytest.mark.thorough
@given(profile=VALUE, region=VALUE, prompt=VALUE)
@QUIET
def test_another_command_takes_what_it_accepts(
    profile: str, region: str, prompt: str, tmp_path: Path
) -> None:
    words = ["--catalog", str(tmp_path), "deploy", "tiny", "--profile", profile, "--region", region,
             "--role", "R", "--bucket", "B"]  # fmt: skip
    context = parsed(words)

    invoke = in_context(("peagle", "invoke", "n", "--", prompt), context)
    aws = in_context(("aws", "iam", "list-roles"), context)

    params = parsed(list(invoke[1:])).params
    assert (params["profile"], params["region"], params["prompt"]) == (profile, region, prompt)
    assert "--role" not in invoke
    assert aws == ("aws", "iam", "list-roles", "--profile", profile)
    assert shlex.split(command_text(invoke, context)) == list(invoke)


def test_options_of_the_environment_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_ROLE", "R")

    assert typed_command(parsed(["deploy", "tiny", "--k", "3"]), "deploy") == (
        "peagle", "deploy", "tiny", "--k", "3",
    )  # fmt: skip


def test_commands_in_documents_keep_the_catalogue(tmp_path: Path) -> None:
    shutil.copy(data_folder("model_catalog") / "runtimes.yaml", tmp_path)
    begin = ("--catalog", str(tmp_path))
    region = ("--region", "eu-west-3")
    plan = in_process(*begin, "plan", "gpt-oss-20b", *region, "--json").document
    check = in_process(*begin, "check", "gpt-oss-20b", *region, "--json").document
    commands = [
        one["command"] for made in (plan, check) for one in made["findings"] if one["command"]
    ]
    assert ["peagle", *begin, "catalog", "refresh", "--prices", *region] in commands
    assert all(command[1:3] == [*begin] for command in commands)


def test_a_printed_plan_with_the_catalogue_in_its_commands_is_a_plan_file(tmp_path: Path) -> None:
    shutil.copy(data_folder("model_catalog") / "runtimes.yaml", tmp_path)
    typed = ("plan", "gpt-oss-20b", "--region", "eu-west-3")
    file, printed, plain = (tmp_path / f"{name}.json" for name in ("file", "printed", "plain"))
    shown = in_process("--catalog", str(tmp_path), *typed, "-o", str(file), "--json")
    in_process(*typed, "-o", str(plain))
    printed.write_text(shown.out)

    assert file.read_bytes() == plain.read_bytes()
    assert read_plan(printed).pair == read_plan(file).pair
    assert read_plan(printed).findings != read_plan(file).findings


def test_a_printed_plan_has_the_account_with_online_only() -> None:
    context = parsed(["deploy", "tiny", "--sandbox"])

    assert in_context(("peagle", "plan", "tiny"), context) == ("peagle", "plan", "tiny")
    online = ("peagle", "plan", "tiny", "--online")
    assert in_context(online, context) == (*online, "--sandbox")


def test_a_value_is_repeated_as_it_was_typed() -> None:
    context = parsed(["logs", "n", "--since", "10m", "-f"])

    assert typed_command(context, "logs") == (
        "peagle", "logs", "n", "--follow", "--since", "10m",
    )  # fmt: skip


@pytest.mark.thorough
def test_the_hints_after_a_failed_deploy_keep_every_option(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "own $catalogue's"
    folder.mkdir()
    shutil.copy(data_folder("model_catalog") / "runtimes.yaml", folder)
    monkeypatch.setattr(Account, "is_available", True)
    monkeypatch.setattr("peagle.sandbox.client.check_sandbox_engine", lambda: None)
    monkeypatch.setattr("peagle.sandbox.client.add_instances", lambda instances: None)
    terminal.cloud.next_scripts = [[("Creating", None), ("Failed", "no ping")]]
    role = next(iter(terminal.cloud.roles))["RoleName"]
    kept = ("--sandbox", "--role", role, "--bucket", "peagle-own-bucket")

    done = terminal.run(
        "--catalog",
        str(folder),
        "deploy",
        "tiny",
        "--instance-type",
        "ml.g5.xlarge",
        *kept,
        "--yes",
    )

    assert done.code == 4
    lines = {line[:8].strip(): shlex.split(line[9:]) for line in done.err.splitlines()
             if line.startswith(("Continue ", "Remove   "))}  # fmt: skip
    assert lines["Continue"] == ["peagle", "--catalog", str(folder), "deploy", "tiny",
                                 "--instance-type", "ml.g5.xlarge", *kept]  # fmt: skip
    assert lines["Remove"] == ["peagle", "--catalog", str(folder), "destroy", NAME, "--sandbox"]
    assert f"peagle --catalog {shlex.quote(str(folder))} logs {NAME} --sandbox" in done.error


def test_list_of_profiles_does_not_use_the_unknown_profile() -> None:
    context = parsed(["deploy", "--profile", "nope", "tiny"])
    profiles = ("aws", "configure", "list-profiles")

    assert in_context(profiles, context) == profiles
    assert in_context(("aws", "sso", "login"), context)[-2:] == ("--profile", "nope")


def test_the_sandbox_does_not_refresh_the_bundled_catalogue(tmp_path: Path) -> None:
    refresh = ("peagle", "catalog", "refresh", "--prices")
    sandbox = ["deploy", "--sandbox", "tiny"]

    assert in_context(refresh, parsed(sandbox)) == ()
    own = parsed(["--catalog", str(tmp_path), *sandbox])
    assert in_context(refresh, own) == (
        "peagle", "--catalog", str(tmp_path), *refresh[1:], "--sandbox",
    )  # fmt: skip


def test_command_with_placeholders_keeps_the_options(tmp_path: Path) -> None:
    context = parsed(["--catalog", str(tmp_path), "plan", "--region", "eu-west-1", "tiny"])

    command = in_context(("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"), context)

    assert shlex.join(command) == (
        f"peagle --catalog {tmp_path} weights sync PAIR s3://BUCKET/PREFIX --region eu-west-1"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("check", "tiny", "--drafter", "{}", "--k", "3"),
        ("check", "tiny", "--target", "{}"),
        ("plan", "tiny", "--drafter", "{}", "--region", "eu-west-1"),
        ("fit", "tiny", "--gpu-memory-gib", "8", "--drafter", "{}"),
    ],
)
@pytest.mark.parametrize(
    ("typed", "folder"),
    [
        ("./my head/config.json", "./my head"),
        ("my head/model.safetensors", "./my head"),
        ("../here/my head/config.json", "../here/my head"),
    ],
)
def test_for_a_file_of_a_checkpoint_the_fix_is_the_command_for_its_folder(
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    typed: str,
    folder: str,
) -> None:
    work = tmp_path / "here"
    shutil.copytree(data_folder("model_catalog") / "peagle/tiny/p-eagle", work / "my head")
    monkeypatch.chdir(work)

    done = terminal.run(*(word.format(typed) for word in command))

    assert done.code == 2
    assert "is a file, not a folder (specify the folder: " in done.error
    assert shlex.join(("peagle", *(word.format(folder) for word in command))) in done.error


def test_for_any_other_file_no_folder_is_suggested(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()

    done = terminal.run("check", "tiny", "--drafter", "./notes.txt")

    assert done.error.endswith(
        "notes.txt is a file, not a folder (use a folder with a config.json)"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("check", "tiny", "--drafter"),
        ("check", "tiny", "--target"),
        ("plan", "tiny", "--drafter"),
        ("plan", "tiny", "--model-source"),
        ("fit", "tiny", "--gpu-memory-gib", "8", "--drafter"),
        ("weights", "sync", "tiny"),
    ],
)
def test_an_s3_uri_with_one_slash_is_shown_with_two(
    terminal: Terminal, command: tuple[str, ...]
) -> None:
    done = terminal.run(*command, "s3:/bucket/x")

    assert done.code == 2
    assert "write s3://bucket/x with two slashes" in done.error
