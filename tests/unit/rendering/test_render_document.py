"""A plan as a file: deterministic, read as written, refused if edited."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from peagle.errors import PlanFileError
from peagle.planning import Options, make_plan
from peagle.render import plan_bytes, plan_from, read_plan
from peagle.render.plan_file import digest
from tests.support import raises_code
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, SHAPES, plan_for, plan_of

WRITTEN = plan_bytes(plan_of("uploaded"))


def document(shape: str = "uploaded") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(plan_bytes(plan_of(shape)))
    return made


def refused(changed: Any) -> str:
    with pytest.raises(PlanFileError) as raised:
        plan_from(changed, "plan.json")
    assert raised.value.code in ("plan-file", "plan-edited", "plan-format", "not-a-plan")
    assert raised.value.exit_code == 2
    assert raised.value.fix
    assert raised.value.message.startswith("plan.json")
    return raised.value.message


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_is_read_as_written(shape: str, tmp_path: Path) -> None:
    plan, path = plan_of(shape), tmp_path / "plan.json"
    path.write_bytes(plan_bytes(plan))
    assert read_plan(path) == plan
    assert plan_bytes(read_plan(path)) == plan_bytes(plan)


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_plans_of_all_pairs_are_read_as_written(pair: str) -> None:
    assert plan_from(json.loads(plan_bytes(plan_for(pair))), "plan.json") == plan_for(pair)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "plan-file", "is not valid JSON: "),
        (b"\xff\xfe", "plan-file", "is not UTF-8"),
        (b"kind: yaml", "plan-file", "is not valid JSON: "),
        (b"[]", "not-a-plan", "is not a plan"),
        (b"null", "not-a-plan", "is not a plan"),
        (b'{"format": wrong}\n', "plan-file", "is not valid JSON: "),
        (b'{"format": 1} and more', "plan-file", "is not valid JSON: "),
        (b'{"pair": 1}', "not-a-plan", "is not a plan"),
        (b'{"format": 2}', "plan-format", "format 2; this version reads format 1"),
        (b'{"format": 1, "format": 1}', "plan-file", "has 'format' twice"),
        (b'{"format": NaN}', "plan-file", "has NaN, which is not JSON"),
        (b"[" * 100_000, "plan-file", "cannot be read"),
    ],
)
def test_a_file_that_is_not_a_plan_is_refused(
    content: bytes, code: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with raises_code(code, PlanFileError) as refused:
        read_plan(path)
    assert refused.value.message.startswith(str(path))
    assert words in refused.value.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with raises_code("plan-file", PlanFileError) as refused:
        read_plan(tmp_path / "plan.json")
    assert str(tmp_path / "plan.json") in refused.value.message
    with raises_code("plan-file", PlanFileError) as refused:
        read_plan(tmp_path)
    assert refused.value.message == f"{tmp_path} cannot be read: Is a directory"


@pytest.mark.parametrize("key", ["target", "requests", "digest", "instance_type"])
def test_a_missing_key_is_named(key: str) -> None:
    changed = document()
    del changed[key]
    assert f"{key!r} is missing" in refused(changed)


def test_an_unknown_key_is_named() -> None:
    changed = document()
    changed["instance_typ"] = "ml.g5.xlarge"
    message = refused(changed)
    assert "no key 'instance_typ'" in message
    assert "did you mean instance_type" in message
    changed = document()
    changed["target"]["licens"] = "mit"
    assert "no key 'target.licens'" in refused(changed)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (["instance_count"], 0, "instance_count"),
        (["instance_count"], "1", "instance_count"),
        (["speculation", "k"], "5", "speculation.k"),
        (["target", "weights", "kind"], "ftp", "target.weights.kind"),
        (["engine_arguments", 3], 7, "engine_arguments[3]"),
        (["startup_timeout_seconds"], 7200, "startup_timeout_seconds"),
        (["name"], "no_underscores", "name"),
        (["findings"], "none", "findings"),
        (["format"], True, "format"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(path: list[Any], value: Any, named: str) -> None:
    changed = document()
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert named in refused(changed)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["speculation", "k"], 3),
        (["environment", "SM_VLLM_SWAP_SPACE"], "1"),
        (["engine_arguments"], []),
        (["mounts"], []),
        (["region"], "eu-west-1"),
        (["price_per_hour_usd"], 0.01),
        (["proof", "prompts"], []),
        (["requests", 2, "operation"], "delete_endpoint"),
        (["requests"], []),
        (["digest"], "0" * 64),
        (["digest"], None),
    ],
)
@pytest.mark.parametrize("has_digest", [False, True])
def test_an_edit_is_refused(path: list[Any], value: Any, has_digest: bool) -> None:
    changed = document()
    at: Any = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    if has_digest and path[0] in ("requests", "environment"):  # what would be sent to AWS
        changed["digest"] = digest(changed)
    with raises_code("plan-edited", PlanFileError):
        plan_from(changed, "plan.json")


def test_the_layout_of_a_file_may_change(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document(), sort_keys=True))
    assert read_plan(path) == plan_of("uploaded")


@pytest.mark.parametrize("format", [0, 1])
def test_alternatives_that_are_no_list_are_refused(format: int) -> None:
    assert refused({**document(), "format": format, "alternatives": 5})


def test_a_plan_file_of_another_format_is_refused_with_the_command_that_renews_it() -> None:
    older = {**document(), "format": 0}
    with raises_code("plan-format", PlanFileError) as raised:
        plan_from(older, "plan.json")
    command = list(raised.value.command)
    assert command[:2] == ["peagle", "plan"]
    assert command[-2:] == ["--output", "plan.json"]
    arguments = dict(itertools.pairwise(command))
    options = Options(
        pair=command[2],
        drafter=arguments.get("--drafter"),
        region=arguments["--region"],
        instance_type=arguments["--instance-type"],
    )
    assert make_plan(options, CATALOG).pair == older["pair"]


def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")

    with raises_code("plan-file", PlanFileError):
        read_plan(tmp_path / "plan.json")
