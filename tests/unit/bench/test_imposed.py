"""Files of acceptance that are refused, and plans on which it is imposed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.acceptance import AcceptanceRequest, measure_acceptance
from peagle.bench.imposed import rates_of, read_acceptance, with_imposed_acceptance
from peagle.catalog import load_catalog
from peagle.errors import UserError
from peagle.planning import Options, Plan, make_plan
from peagle_serve.contract import SPECULATION
from tests.support import raises_code
from tests.unit.bench.drafting import Drafting, prompts_of


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    prompts = prompts_of("chat 1", "chat 2")
    return measure_acceptance(Drafting().target(), prompts, AcceptanceRequest()).document()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Options(pair="gpt-oss-20b+p-eagle", k=3), load_catalog())


def changed(document: dict[str, Any], **values: Any) -> dict[str, Any]:
    total = document["total"]
    acceptance = {**total["acceptance"], **values}
    return {**document, "total": {**total, "acceptance": acceptance}}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"per_position": [0.7, 0.2, -0.1]}, "a rate that is not between 0 and 1"),
        ({"per_position": [1.7, 0.2, 0.1]}, "a rate that is not between 0 and 1"),
        ({"per_position": [0.2, 0.7, 0.1]}, "a rate above that of the position before"),
        ({"per_position": [0.7, 0.3]}, "rates of 2 positions, and K is 3"),
        ({"length": 4.5}, "a length of 4.5, and its rates give 2"),
        ({"drafts": 0}, "has no drafts"),
    ],
)
def test_impossible_numbers_are_refused(
    document: dict[str, Any], tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(changed(document, **values)))

    with raises_code("acceptance-file", UserError) as raised:
        read_acceptance(file)

    assert why in raised.value.message


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1', "NaN", '{"k": "x"}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)

    with pytest.raises(UserError, match="cannot be read"):
        read_acceptance(file)


def test_numbers_that_are_none_and_other_formats_are_refused(
    document: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(changed(document, length=float("nan"))))
    with pytest.raises(UserError, match="NaN"):
        read_acceptance(file)

    file.write_text(json.dumps(changed(document, length="nan")))
    with raises_code("acceptance-file", UserError):
        read_acceptance(file)

    file.write_text(json.dumps({**document, "format": 2}))
    with raises_code("acceptance-file", UserError):
        read_acceptance(file)
    with raises_code("acceptance-file", UserError):
        read_acceptance(tmp_path / "missing.json")


def test_only_measured_positions_and_domains_have_rates(
    document: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document))
    found = read_acceptance(file)

    assert rates_of(found, 2, "chat") == (0.7, 0.2)
    with raises_code("acceptance-file", UserError) as deeper:
        rates_of(found, 4)
    with raises_code("acceptance-file", UserError) as other:
        rates_of(found, 2, "chats")
    assert deeper.value.fix == "measure acceptance with K=4, or leave K=4 out"
    assert other.value.fix == "did you mean chat?"


def test_the_engine_gets_the_rates(plan: Plan) -> None:
    found = with_imposed_acceptance(plan, (0.7, 0.4, 0.2))

    config = json.loads(found.environment[SPECULATION])
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == [0.7, 0.4, 0.2]
    assert config["num_speculative_tokens"] == 3
    assert found.environment[SPECULATION] in found.engine_arguments
    assert SPECULATION not in {
        name for name, value in found.environment.items() if value == plan.environment.get(name)
    }
    assert (
        found.model_copy(
            update={
                "speculation": plan.speculation,
                "environment": plan.environment,
                "engine_arguments": plan.engine_arguments,
            }
        )
        == plan
    )


def test_rates_of_another_k_cannot_be_imposed(plan: Plan) -> None:
    with raises_code("acceptance-file", UserError):
        with_imposed_acceptance(plan, (0.7, 0.4))
