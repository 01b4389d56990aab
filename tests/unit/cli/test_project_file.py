"""``peagle.yaml``: what each part of it decides, and how commands take their options from it."""

from pathlib import Path
from typing import Any

import pytest

from peagle.cli.main import cli
from peagle.cli.project import file_options
from peagle.project import Project, choose_endpoint, parse_project, project_schema
from tests.support import Done, in_process

FILE = """\
defaults:
  region: us-east-1
  instance_type: ml.g5.xlarge
  tag: {team: search, cost-center: 12}
environments:
  staging:
    ttl: 8h
    tag: {stage: staging, cost-center: null}
  production:
    max_instances: 4
endpoints:
  chat:
    pair: tiny
    max_model_len: 1k
    set:
      gpu-memory-utilization: 0.90
    environments:
      staging: {k: 3}
  plain:
    pair: tiny
    no_speculation: true
    region: null
gates:
  prove: {floor: 2.0}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder below that of a project file."""
    (tmp_path / "peagle.yaml").write_text(FILE, encoding="utf-8")
    (tmp_path / "below").mkdir()
    return tmp_path / "below"


def project(text: str = FILE) -> Project:
    return parse_project(text, Path("peagle.yaml"), file_options(cli))


def planned(folder: Path, *arguments: str) -> dict[str, Any]:
    done = in_process("plan", *arguments, "--json", folder=folder)
    assert done.code == 0, done.err
    document: dict[str, Any] = done.document
    return document


def values(endpoint: str, environment: str) -> dict[str, Any]:
    chosen = choose_endpoint(project(), endpoint, environment)
    return {key: option.value for key, option in chosen.values.items()}


def test_a_more_specific_part_replaces_another_and_mappings_are_merged() -> None:
    assert values("chat", "staging") == {
        "pair": "tiny", "region": "us-east-1", "instance_type": "ml.g5.xlarge", "ttl": "8h",
        "max_model_len": "1k", "set": {"gpu-memory-utilization": 0.9}, "k": 3,
        "tag": {"team": "search", "stage": "staging"},
    }  # fmt: skip


def test_a_plan_takes_its_options_from_the_file_above(folder: Path) -> None:
    plan = planned(folder, "chat", "-e", "staging")
    assert plan["name"] == "peagle-chat-staging"
    assert plan["instance_type"] == "ml.g5.xlarge"
    assert plan["speculation"]["k"] == 3
    assert plan["max_model_len"] == 1024
    assert plan["limit"]["ttl_seconds"] == 8 * 3600
    assert plan["company"]["tags"] == {"team": "search", "stage": "staging"}
    assert plan["overrides"]["settings"] == {"gpu-memory-utilization": "0.90"}


def test_the_command_line_wins_over_the_file_and_the_file_over_variables(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    typed = ("--k", "2", "--tag", "stage=mine")
    plan = planned(folder, "chat", "-e", "staging", *typed)
    assert plan["speculation"]["k"] == 2
    assert plan["region"] == "us-east-1"
    assert plan["company"]["tags"] == {"team": "search", "stage": "mine"}
    assert planned(folder, "plain", "-e", "production")["region"] == "eu-west-1"


def test_commands_that_are_printed_name_the_environment(folder: Path) -> None:
    done = in_process("plan", "chat", "-e", "staging", folder=folder)
    assert "peagle deploy chat -e staging" in done.out


@pytest.mark.parametrize(("text", "name"), [
    ("endpoints: {chat: {pair: tiny, name: talk}}", "peagle-talk-staging"),
    ("endpoints: {chat: {pair: tiny, environments: {staging: {name: talk}}}}", "talk"),
    ("defaults: {name: talk}\nendpoints: {chat: {pair: tiny}}", "talk-staging"),
])  # fmt: skip
def test_each_environment_has_a_name_of_its_own(tmp_path: Path, text: str, name: str) -> None:
    stages = "environments: {staging: {}, production: {}}\n"
    (tmp_path / "peagle.yaml").write_text(f"{stages}{text}\n", encoding="utf-8")
    assert planned(tmp_path, "-e", "staging")["name"].removeprefix("peagle-") == (
        name.removeprefix("peagle-")
    )


def test_a_name_that_endpoints_share_is_an_error(folder: Path) -> None:
    file = folder.parent / "peagle.yaml"
    file.write_text(FILE.replace("defaults:\n", "defaults:\n  name: talk\n"), encoding="utf-8")
    error = in_process("plan", "chat", "-e", "staging", folder=folder).error
    assert "peagle.yaml:2: defaults.name: several endpoints would have this name" in error


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    file = folder.parent / "peagle.yaml"
    file.write_text("endpoints:\n  own: {pair: tiny, verdict: v.json}\n", encoding="utf-8")
    done = in_process("plan", "--project", "../peagle.yaml", folder=folder)
    assert done.error.startswith("error: there is no file ../v.json")


@pytest.mark.parametrize(("arguments", "error"), [
    ((), "peagle.yaml has 2 endpoints (name one of chat, plain)"),
    (("-e", "staging"), "peagle.yaml has 2 endpoints (name one of chat, plain)"),
    (("chot", "-e", "staging"), "peagle.yaml has no endpoint 'chot' (did you mean chat?)"),
    (("chat", "-e", "prod"), "has no environment 'prod' (did you mean production?)"),
    (("chat", "--project", "../peagle.yaml"), "(name one with --environment: staging, product"),
    (("chat", "--project", "x.yaml"), "x.yaml: cannot be read: No such file or directory"),
])  # fmt: skip
def test_what_is_named_wrongly_is_an_error_of_one_line(
    folder: Path, arguments: tuple[str, ...], error: str
) -> None:
    done = in_process("plan", *arguments, folder=folder)
    assert done.code == 2
    assert error in done.error


def test_without_a_file_the_argument_is_missing(tmp_path: Path) -> None:
    assert "Missing argument 'PAIR|PLAN'" in in_process("plan", folder=tmp_path).error
    assert "no peagle.yaml in this folder" in in_process("plan", "-e", "x", folder=tmp_path).error


@pytest.mark.parametrize(("key", "value", "typed"), [
    ("requests", "1m", "1m"),
    ("requests", "5000", "5000"),
    ("concurrency", "1_024", "1024"),
    ("max_model_len", "2k", "2048"),
    ("prompt_tokens", "'1,024'", "1024"),
])  # fmt: skip
def test_key_takes_what_its_option_takes(tmp_path: Path, key: str, value: str, typed: str) -> None:
    named = ("chat", "--project", "peagle.yaml")
    file, flag = tmp_path / "peagle.yaml", f"--{key.replace('_', '-')}"
    file.write_text("endpoints:\n  chat: {pair: tiny}\n", encoding="utf-8")
    expected = planned(tmp_path, *named, flag, typed)
    file.write_text(f"endpoints:\n  chat: {{pair: tiny, {key}: {value}}}\n", encoding="utf-8")
    assert planned(tmp_path, *named) == expected


WRONG = [
    ("defaults: {instnce_type: x}", "1: defaults.instnce_type: unknown key (did you mean instance"),
    ("defaults: {k: five}", "1: defaults.k: should be a valid integer"),
    ("defaults: {requests: 1x}", "1: defaults.requests: '1x' is not a number of requests such as"),
    ("defaults: {target_concurrency: 0}", "target_concurrency: needs a number above 0"),
    ("defaults: {vllm: 0.28}", "1: defaults.vllm: should be a valid string, and is 0.28"),
    ("defaults: {observe: yes}", "1: defaults.observe: should be a valid boolean"),
    ("defaults: {rollout: canari}", "1: defaults.rollout: should be 'rolling', 'canary'"),
    ("defaults: {instance_count: 0}", "defaults.instance_count: needs a number of at least 1"),
    ("defaults: {max_model_len: 8x}", "defaults.max_model_len: '8x' is not a number of tokens"),
    ("defaults: {ttl: soon}", "1: defaults.ttl: 'soon' is not a duration such as 90s, 10m, 1h30m"),
    ("defaults: {slo: fast}", "1: defaults.slo: "),
    ("gates: {prove: {flor: 2}}", "1: gates.prove.flor: unknown key (did you mean floor?"),
    ("environments: {a b: {}}", "1: environments.a b: "),
    ("defaults: 3", "1: defaults: "),
    ("endpoint: {}", "1: endpoint: unknown key (did you mean endpoints"),
    ("pair: tiny", "1: pair: unknown key (keys: defaults, environments, gates, endpoints)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error"), WRONG, ids=[text for text, _ in WRONG])
def test_a_wrong_file_is_an_error_with_file_line_key_and_fix(
    tmp_path: Path, text: str, error: str
) -> None:
    endpoints = "" if "chat:" in text else "endpoints: {chat: {pair: tiny}}"
    done = _of_file(tmp_path, f"{text}\n{endpoints}\n")
    assert done.code == 2
    assert done.error.startswith("error: peagle.yaml:")
    assert error in done.error


def _of_file(folder: Path, text: str) -> Done:
    (folder / "peagle.yaml").write_text(text, encoding="utf-8")
    return in_process("plan", folder=folder)


def test_the_schema_has_every_option_with_its_help() -> None:
    schema = project_schema(file_options(cli))
    settings = schema["$defs"]["Environment"]["properties"]
    assert settings["max_instances"]["description"].startswith("Scale automatically")
    assert {"pair", "role", "profile", "sandbox", "set", "env", "tag", "gates"} <= settings.keys()
    assert not {"yes", "json", "project", "environment"} & settings.keys()
