"""What a company prescribes for its account: network, key, tags, prefix, boundary."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.errors import PlanFileError
from peagle.planning import Options, Plan, make_plan
from peagle.render.formats import render
from peagle.render.plan_file import digest, plan_bytes, plan_document, read_plan, recreate_fix
from peagle.render.requests import plan_arguments, requests
from tests.support import in_process, raises_code
from tests.unit.planning.small_catalog import because
from tests.unit.rendering.plans import CATALOG, plan_of

S3 = {"model_source": "s3://models/qwen/target/", "drafter": "s3://models/qwen/drafter/"}


def plan(pair: str = "tiny", **options: Any) -> Plan:
    return make_plan(Options(pair=pair, **options), CATALOG)


def levels(made: Plan) -> dict[str, str]:
    return {finding.code: finding.level for finding in made.findings}


def parameters(made: Plan) -> list[dict[str, Any]]:
    return [request.parameters for request in requests(made)]


@pytest.mark.parametrize(("name", "prefix", "expected"), [
    (None, "", "peagle-tiny"),
    (None, "acme-", "acme-tiny"),
    ("chat", "acme-", "acme-chat"),
    ("acme-chat", "acme-", "acme-chat"),
])  # fmt: skip
def test_names_begin_with_the_prefix(name: str | None, prefix: str, expected: str) -> None:
    made = plan(name=name, name_prefix=prefix)
    model, config, endpoint = parameters(made)
    names = (model["ModelName"], config["EndpointConfigName"], endpoint["EndpointName"])
    assert all(resource.startswith(expected) for resource in names)
    assert f"/peagle-toolkit/{expected}/" in made.mounts[0].s3_uri


@pytest.mark.thorough
def test_an_isolated_container_downloads_nothing() -> None:
    assert levels(plan("qwen3-8b", network_isolation=True))["isolated-container"] == "error"
    streamed = plan("qwen3-8b", network_isolation=True, weights_by="stream", **S3)
    assert levels(streamed)["isolated-container"] == "error"
    mounted = plan("qwen3-8b", network_isolation=True, **S3)
    assert "isolated-container" not in levels(mounted)
    assert mounted.environment["HF_HUB_OFFLINE"] == "1"
    assert because(mounted, "HF_HUB_OFFLINE") is not None


@pytest.mark.thorough
def test_an_isolated_gpt_oss_takes_its_vocabulary_from_beside_the_weights() -> None:
    made = plan("gpt-oss-20b", network_isolation=True, **S3)
    assert made.environment["TIKTOKEN_ENCODINGS_BASE"] == made.target.weights.engine_path
    assert "vocabulary-download" not in levels(made)
    assert levels(plan("gpt-oss-20b", **S3))["vocabulary-download"] == "warning"


@pytest.mark.parametrize(("change", "code", "named"), [
    ({"network_isolation": False}, "plan-edited", ""),
    ({"tags": {"aws:x": "y"}}, "plan-file", "--tag"),
    ({"tags": ["team"]}, "plan-file", "company"),
    ({"unknown": 1}, "plan-file", "company"),
])  # fmt: skip
def test_a_plan_file_with_other_settings_than_its_requests_is_refused(
    change: dict[str, Any], code: str, named: str, tmp_path: Path
) -> None:
    document = plan_document(plan_of("company"))
    document["company"] |= change
    document["digest"] = digest(document)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    with raises_code(code, PlanFileError) as refused:
        read_plan(file)
    assert named in refused.value.message


def test_the_command_that_creates_a_plan_again_names_the_keys_of_the_file() -> None:
    made = plan_of("company")
    earlier = {**plan_document(made), "reasons": [{"what": "k", "because": "an earlier version"}]}
    fix = recreate_fix(earlier, "plan.json")
    for text in ("team=ml=a:b/c@d", "empty="):
        assert text in plan_arguments(made)
        assert text in (fix.command or ())
    assert "network_isolation" in fix.sentence
    assert "name_prefix" in fix.sentence


@pytest.mark.thorough
def test_variables_set_what_options_do_not_and_no_plan_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PEAGLE_TAGS": "team=ml,cost center=a b",
        "PEAGLE_SUBNETS": "subnet-0a1b2c3d",
        "PEAGLE_SECURITY_GROUPS": "sg-0a1b2c3d",
        "PEAGLE_NAME_PREFIX": "acme-",
        "PEAGLE_KMS_KEY": "alias/models",
        "PEAGLE_PERMISSIONS_BOUNDARY": "arn:aws:iam::123456789012:policy/boundary",
    }.items():
        monkeypatch.setenv(name, value)
    made = in_process("plan", "tiny", "--json").document
    assert made["company"]["tags"] == {"team": "ml", "cost center": "a b"}
    assert made["company"]["subnets"] == ["subnet-0a1b2c3d"]
    assert made["name"] == "acme-tiny"
    other = in_process("plan", "tiny", "--tag", "team=web", "--json").document
    assert other["company"]["tags"] == {"team": "web"}
    file = tmp_path / "plan.json"
    file.write_bytes(plan_bytes(plan()))
    assert "company" not in in_process("plan", str(file), "--json").document


@pytest.mark.parametrize("format", ["cloudformation", "terraform"])
def test_the_role_of_an_end_has_the_boundary_and_the_tags(format: str) -> None:
    boundary = "arn:aws:iam::123456789012:policy/boundary"
    made = plan(ttl=8 * 3600, permissions_boundary=boundary, tags={"team": "ml=a:b/c@d"})
    text = b"".join(file.content for file in render(format, made, CATALOG)).decode()
    assert boundary in text
    role = text[text.index(boundary) :]
    assert "ml=a:b/c@d" in role[:400]


# ``--ttl`` and ``--budget`` of a plan: when it ends, and what is refused.
HOUR = 3600


@pytest.mark.thorough
def test_a_budget_needs_a_price() -> None:
    table = CATALOG.instances
    unpriced = tuple(each.model_copy(update={"prices": ()}) for each in table.instances)
    without = replace(CATALOG, instances=table.model_copy(update={"instances": unpriced}))
    findings = make_plan(Options(pair="tiny", budget=200.0), without).findings
    (finding,) = [f for f in findings if f.code == "budget-without-price"]
    assert finding.level == "error"
    assert "--ttl" in finding.fix


def test_an_end_before_the_endpoint_may_have_started_is_a_warning() -> None:
    assert "limit-before-start" in levels(plan(ttl=120))
    assert "limit-before-start" not in levels(plan(ttl=8 * HOUR))


@pytest.mark.parametrize(("options", "words"), [
    ({"ttl": 28800}, ["--ttl", "8h"]),
    ({"ttl": 90, "budget": 12.5}, ["--ttl", "90s", "--budget", "12.5"]),
    ({"no_limit": True}, ["--no-limit"]),
    ({}, []),
])  # fmt: skip
def test_the_arguments_set_the_same_limit(options: dict[str, Any], words: list[str]) -> None:
    others = plan_arguments(plan())
    assert [word for word in plan_arguments(plan(**options)) if word not in others] == words
