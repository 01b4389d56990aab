"""Plans and verdicts as files: deterministic, read as written, one clear line for a bad one."""

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.errors import PeagleError, PlanFileError, VerdictFileError
from peagle.planning import Options, make_plan
from peagle.planning.verdict import VerdictOptions, make_verdict
from peagle.render import plan_bytes, plan_from, read_plan
from peagle.render.plan_file import digest
from peagle.render.verdict_file import read_verdict, verdict_bytes, verdict_from
from peagle.speed.ranking import Setting
from peagle.speed.verdict import Verdict
from peagle.workload import WORKLOADS, Workload
from tests.support import raises_code
from tests.unit.rendering.plans import CATALOG, SHAPES, plan_of


def document() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(plan_bytes(plan_of("uploaded")))
    return made


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    """The document with this value at the path."""
    made: Any = document()
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return dict(made)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_is_read_as_written(shape: str, tmp_path: Path) -> None:
    plan, path = plan_of(shape), tmp_path / "plan.json"
    path.write_bytes(plan_bytes(plan))
    assert read_plan(path) == plan
    assert plan_bytes(read_plan(path)) == plan_bytes(plan)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert read_plan(path) == plan, "its layout may change"


BAD = {
    "missing": None,
    "empty": b"",
    "not UTF-8": b"\xff\xfe",
    "a key twice": b'{"format": 1, "format": 1}',
    "NaN": b'{"format": NaN}',
    "deep": b"[" * 100_000,
    "huge": b'"' + b"x" * (9 << 20) + b'"',
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("read", [read_plan, read_verdict])
def test_a_file_that_is_no_document_is_refused(
    read: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    content, path = BAD[name], tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with raises_code("plan-file" if read is read_plan else "verdict-file") as refused:
        read(path)
    assert str(path) in refused.value.message
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("read", [read_plan, read_verdict])
def test_a_folder_is_no_file(read: Callable[[Path], object], tmp_path: Path) -> None:
    with raises_code("plan-file" if read is read_plan else "verdict-file"):
        read(tmp_path)


@pytest.mark.parametrize(("content", "code"), [
    ([], "not-a-plan"),
    ({"pair": 1}, "not-a-plan"),
    ({"format": 1, "workloads": []}, "not-a-plan"),
    ({"format": 2}, "plan-format"),
    ({**document(), "alternatives": 5}, "plan-file"),
    ({**document(), "format": 0, "alternatives": 5}, "plan-format"),
])  # fmt: skip
def test_another_document_is_no_plan(content: Any, code: str) -> None:
    with raises_code(code, PlanFileError) as refused:
        plan_from(content, "plan.json")
    assert refused.value.message.startswith("plan.json")


@pytest.mark.parametrize(
    ("made", "named"),
    [
        *(({k: v for k, v in document().items() if k != key}, key)
          for key in ("target", "requests", "digest", "instance_type")),
        (changed(["instance_typ"], "x"), "instance_typ: unknown key; did you mean instance_type"),
        (changed(["target", "licens"], "mit"), "target.licens: unknown key"),
        (changed(["instance_count"], 0), "instance_count"),
        (changed(["target", "weights", "kind"], "ftp"), "target.weights.kind"),
        (changed(["name"], "no_underscores"), "name"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_named(made: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanFileError) as refused:
        plan_from(made, "plan.json")
    assert named in refused.value.message


@pytest.mark.parametrize("has_digest", [False, True])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["speculation", "k"], 3), (["environment", "SM_VLLM_SWAP_SPACE"], "1"),
        (["engine_arguments"], []), (["mounts"], []), (["region"], "eu-west-1"),
        (["price_per_hour_usd"], 0.01), (["proof", "prompts"], []),
        (["requests", 2, "operation"], "delete_endpoint"), (["requests"], []),
        (["digest"], "0" * 64), (["digest"], None),
    ],
)  # fmt: skip
def test_an_edit_is_refused(path: list[Any], value: Any, has_digest: bool) -> None:
    made = changed(path, value)
    if has_digest and path[0] in ("requests", "environment"):  # what would be sent to AWS
        made["digest"] = digest(made)
    with raises_code("plan-edited", PlanFileError):
        plan_from(made, "plan.json")


def test_a_plan_file_of_another_format_is_refused_with_the_command_that_renews_it() -> None:
    older = {**document(), "format": 0}
    with raises_code("plan-format", PlanFileError) as raised:
        plan_from(older, "plan.json")
    command = list(raised.value.command)
    assert (command[:2], command[-2:]) == (["peagle", "plan"], ["--output", "plan.json"])
    arguments = dict(itertools.pairwise(command))
    options = Options(
        pair=command[2],
        drafter=arguments.get("--drafter"),
        region=arguments["--region"],
        instance_type=arguments["--instance-type"],
    )
    assert make_plan(options, CATALOG).pair == older["pair"]


@cache
def verdict() -> Verdict:
    sizes = {name: WORKLOADS[name] for name in ("short-prompt", "long-prompt")}
    options = VerdictOptions(pair="gpt-oss-20b", gpu="H200", loads=(1, 32), vllm="0.26.0")
    return make_verdict(options, load_catalog(), sizes)


def test_a_verdict_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(verdict_bytes(verdict()))
    assert read_verdict(path) == verdict()
    assert verdict_bytes(read_verdict(path)) == path.read_bytes()


def test_the_nearest_load_and_size_answer() -> None:
    made = verdict()
    sizes = [made.at(size, 1)[0].name for size in (None, Workload(100, 300), Workload(9000, 50))]
    assert sizes == ["short-prompt", "short-prompt", "long-prompt"]
    loads = [made.at(None, load)[1].concurrency for load in (0.5, 1, 5, 6, 1000)]
    assert loads == [1, 1, 1, 32, 32]
    assert made.at(None, 1)[1].best == Setting(drafter="p-eagle", k=7)


def first_load(document: dict[str, Any]) -> dict[str, Any]:
    load: dict[str, Any] = document["workloads"][0]["loads"][0]
    return load


def first_speed(document: dict[str, Any]) -> dict[str, Any]:
    speed: dict[str, Any] = first_load(document)["speeds"][0]
    return speed


def first_setting(document: dict[str, Any]) -> dict[str, Any]:
    setting: dict[str, Any] = first_speed(document)["setting"]
    return setting


@pytest.mark.parametrize(("damage", "message"), [
    (lambda d: d.update(format=2), "verdict format 2"),
    (lambda d: d.pop("workloads"), "is not a verdict"),
    (lambda d: d.pop("gpu"), "gpu: missing key"),
    (lambda d: first_speed(d).update(tokens_per_second="9"), "number"),
    (lambda d: d.update(target="a\x1b[31mb"), "target: "),
    (lambda d: first_setting(d).update(drafter=None, k=1), "a drafter needs a K"),
    (lambda d: first_setting(d).update(drafter="p-eagle", k=0), "a drafter needs a K"),
    (lambda d: first_setting(d).update(k=-1), "setting.k: "),
    (lambda d: first_setting(d).update(k="7"), "setting.k: "),
    (lambda d: first_setting(d).update(drafter="a\x1b[31mb"), "setting.drafter: "),
    (lambda d: first_setting(d).update(another=1), "setting.another"),
])  # fmt: skip
def test_a_damaged_verdict_has_one_clear_error(
    damage: Callable[[dict[str, Any]], object], message: str
) -> None:
    damaged = json.loads(verdict_bytes(verdict()))
    damage(damaged)
    with pytest.raises(VerdictFileError) as refused:
        verdict_from(damaged, "verdict.json")
    assert isinstance(refused.value, PeagleError)
    assert message in refused.value.message
    assert refused.value.message.startswith("verdict.json")
    assert "Value error" not in refused.value.message


def test_no_file_allows_unpinned_warm_starts(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(plan_bytes(make_plan(Options(pair="tiny", allow_unpinned_warm=True), CATALOG)))
    with raises_code(PlanFileError.code, PlanFileError):
        read_plan(file)
