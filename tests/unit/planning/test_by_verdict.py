"""Plans that take drafter and K from a verdict, and floors that come from the speed model."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.errors import VerdictFileError
from peagle.planning import Options, Plan, make_plan
from peagle.planning.verdict import VerdictRequest, make_verdict, plan_by_verdict
from peagle.render.plan_file import verdict_bytes, verdict_from
from peagle.speed.models import Workload
from peagle.speed.verdict import Verdict
from tests.support import in_process, raises_code

CATALOG = load_catalog()
FILE = Path("verdict.json")
SIZES = {"short": Workload(128, 400), "long": Workload(2048, 256)}


@cache
def verdict(**changes: Any) -> Verdict:
    settings: dict[str, Any] = {"gpu": "L40S", "loads": (1, 8, 64)}
    pair = changes.pop("pair", "gpt-oss-20b")
    sizes = {} if pair == "tiny" else {"workloads": SIZES}
    return make_verdict(VerdictRequest(pair, **settings | sizes | changes), CATALOG)


def planned(by: Verdict, **options: Any) -> Plan:
    return plan_by_verdict(Options(pair="gpt-oss-20b", **options), by, FILE, CATALOG)


def with_winner(by: Verdict, drafter: str | None, k: int) -> Verdict:
    """The verdict as if this setting won at every load."""
    document = by.model_dump(mode="json")
    for size in document["workloads"]:
        for load in size["loads"]:
            best = {"drafter": drafter, "k": k}
            (like,) = [speed for speed in load["speeds"] if speed["setting"] == load["best"]]
            others = [speed for speed in load["speeds"] if speed["setting"] != best]
            load["speeds"] = [*others, like | {"setting": best, "acceptance_length": 1.0}]
            load["speeds"][-1]["break_even_acceptance_length"] = None
            load |= {"best": best, "ties": []}
    return verdict_from(document, "verdict.json")


@pytest.mark.parametrize("concurrency", [1, 8, 64])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_plan_has_the_verdicts_setting(size: Workload, concurrency: int) -> None:
    sizes = {"prompt_tokens": size.prompt_tokens, "output_tokens": size.output_tokens}
    made = planned(verdict(), concurrency=concurrency, instance_count=1, **sizes)
    best = verdict().at(size, concurrency)[1].best
    assert best is not None
    drafter = made.drafter.name if made.drafter else None
    k = made.speculation.k if made.speculation else 0
    assert (drafter, k) == (best.drafter, best.k)
    assert made.instance_type == verdict().instance_type
    assert any("the verdict verdict.json" in reason.because for reason in made.reasons)


@pytest.mark.parametrize(("drafter", "k"), [("eagle3", 2), ("p-eagle", 9), (None, 0)])
def test_whatever_wins_is_planned(drafter: str | None, k: int) -> None:
    made = planned(with_winner(verdict(), drafter, k))
    assert (made.drafter.name if made.drafter else None) == drafter
    assert (made.speculation.k if made.speculation else 0) == k
    reasons = [reason for reason in made.reasons if "verdict" in reason.because]
    assert [reason.what for reason in reasons] == (["drafter", "k"] if drafter else ["drafter"])
    assert reasons[0].value == (drafter or "none")


def test_a_drafter_of_unknown_speed_has_the_verdict_as_its_reason() -> None:
    made = planned(verdict(), instance_type="ml.g6e.xlarge")
    assert not any("catalogue's default;" in reason.because for reason in made.reasons)
    options = Options(pair="tiny", drafter="ngram", chosen_by="the verdict verdict.json")
    (reason,) = (one for one in make_plan(options, CATALOG).reasons if one.what == "speculation")
    assert reason.because == "the verdict verdict.json; its speed here is unknown"


@pytest.mark.parametrize(
    ("options", "covered"),
    [
        ({"concurrency": 128, "instance_count": 1}, True),
        ({"concurrency": 129, "instance_count": 1}, False),
        ({"concurrency": 256, "instance_count": 2}, True),
        ({"concurrency": 8, "prompt_tokens": 4096, "output_tokens": 128}, True),
        ({"concurrency": 8, "prompt_tokens": 4097, "output_tokens": 256}, False),
        ({"concurrency": 8, "prompt_tokens": 2048, "output_tokens": 127}, False),
    ],
)
def test_a_load_that_the_verdict_does_not_cover_is_refused(
    options: dict[str, Any], covered: bool
) -> None:
    if covered:
        planned(verdict(), **options)
        return
    with raises_code("load-not-in-verdict", VerdictFileError) as caught:
        planned(verdict(), **options)
    assert "the nearest in it is" in caught.value.message
    assert caught.value.fix == "create a verdict for this load"
    assert caught.value.command[:3] == ("peagle", "verdict", "gpt-oss-20b")


def test_another_number_of_gpus_is_a_warning() -> None:
    one = verdict(instance_type="ml.g6e.12xlarge", tensor_parallel_size=1)
    made = planned(one, concurrency=1)
    assert made.fit.tensor_parallel_size > 1
    (found,) = [finding for finding in made.findings if finding.code == "verdict-other-gpus"]
    assert "1 x L40S" in found.message
    assert found.command is not None


OTHER = "verdict-of-another-plan"


@pytest.mark.parametrize(
    ("changes", "options", "code", "named"),
    [
        ({"pair": "qwen3-8b"}, {}, OTHER, "on Qwen/Qwen3-8B, not on openai/gpt-oss-20b"),
        ({}, {"instance_type": "ml.p5.48xlarge"}, OTHER, "on L40S, not on H100"),
        ({}, {"vllm": "0.30.0"}, OTHER, "on vLLM 0.28.0, not on vLLM 0.30.0"),
        ({}, {"k": 3}, "conflicting-options", "--k and --verdict"),
        ({}, {"drafter": "eagle3"}, "conflicting-options", "--drafter and --verdict"),
        ({}, {"speculation": False}, "conflicting-options", "--no-speculation"),
    ],
)
def test_a_verdict_about_something_else_is_refused(
    changes: dict[str, Any], options: dict[str, Any], code: str, named: str
) -> None:
    with raises_code(code) as found:
        planned(verdict(**changes), **options)
    assert named in found.value.message
    assert found.value.exit_code == 2


def test_the_drafter_of_the_pair_must_be_the_verdicts() -> None:
    with raises_code("verdict-selects-another") as refused:
        plan_by_verdict(
            Options(pair="gpt-oss-20b+eagle3"), with_winner(verdict(), "p-eagle", 3), FILE, CATALOG
        )
    assert "verdict.json selects p-eagle" in refused.value.message


@pytest.mark.thorough
def test_plan_deploy_and_render_take_the_file(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(verdict_bytes(with_winner(verdict(), "eagle3", 2)))
    plan = in_process("plan", "gpt-oss-20b", "--verdict", str(path), "--json")
    assert plan.code == 0, plan.err
    assert plan.document["speculation"]["k"] == 2
    folder = tmp_path / "out"
    done = in_process("render", "cdk", "gpt-oss-20b", "--verdict", str(path), "-o", str(folder))
    assert done.code == 0, done.err
    texts = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
    assert "RedHatAI/gpt-oss-20b-speculator.eagle3" in texts


@pytest.mark.parametrize("command", ["plan", "deploy"])
def test_a_bad_file_is_one_clear_line(command: str, tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text('{"format": 1')
    done = in_process(command, "gpt-oss-20b", "--verdict", str(path))
    assert done.code == 2
    assert f"{path} is not valid JSON" in done.error


def test_a_plan_file_and_a_verdict_exclude_each_other(tmp_path: Path) -> None:
    done = in_process("render", "cdk", "plan.json", "--verdict", "v.json", "-o", str(tmp_path))
    assert done.code == 2


def test_a_pair_without_a_floor_gets_the_break_even_length() -> None:
    made = make_plan(Options(pair="gpt-oss-20b+ngram", instance_type="ml.g6e.xlarge"), CATALOG)
    assert made.speculation is not None
    assert made.speculation.acceptance_floor is not None
    assert 1 < made.speculation.acceptance_floor < made.speculation.k + 1
    assert made.speculation.acceptance_floor_source == "break-even"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"pair": "qwen3-8b"}, ()),
        ({}, ("--instance-type", "ml.p5.48xlarge")),
        ({}, ("--vllm", "0.30.0")),
    ],
)
def test_the_printed_command_creates_a_verdict_that_fits(
    changes: dict[str, Any], options: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(verdict_bytes(verdict(**changes)))
    refused = in_process("plan", "gpt-oss-20b", *options, "--verdict", str(path), "--json")
    command = json.loads(refused.err)["error"]["command"]
    assert in_process(*command[1:]).code == 0
    done = in_process("plan", "gpt-oss-20b", *options, "--verdict", str(path), "--json")
    assert done.code == 0, done.err
