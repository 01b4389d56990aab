"""Results as ``--json`` prints them: their fields are the keys."""

from dataclasses import dataclass
from typing import Any

import pytest

from peagle.aws.autoscaling import Bounds
from peagle.aws.errors import InsufficientCapacity
from peagle.bench.result import NO_SPECULATION, BenchLoad, BenchWorkload
from peagle.bench.sweep import SweepProgress
from peagle.cli.view.bench import progress_text
from peagle.cli.view.watch import comparison_text, floor_text, measured
from peagle.deploy.apply import Attempt
from peagle.deploy.diff import Change, PlanComparison
from peagle.deploy.drift import Drift
from peagle.deploy.removal import Reaped
from peagle.deploy.state import Deployment, Resource, ResourceName
from peagle.deploy.status import ComparedPlan, DeploymentStatus
from peagle.engine.usage import Usage
from peagle.errors import CloudError, Fix
from peagle.frozen import Result
from peagle.planning.plan import FloorSource
from peagle.text import plain
from peagle.workload import Workload


class Sample(Result):
    required: int | None
    listed: tuple[ResourceName, ...] = ()
    optional: int | None = None
    zero: int | None = 0


MODEL = Resource(type="Model", name="m", made=True, revision="0a", keys=("k",))


@pytest.mark.parametrize(
    ("result", "document"),
    [
        (Sample(required=None), {"required": None, "listed": [], "zero": 0}),
        (Sample(required=1, optional=0, zero=None), {"required": 1, "listed": [], "optional": 0}),
        (
            Sample(required=1, listed=(MODEL,)),
            {"required": 1, "listed": [{"type": "Model", "name": "m"}], "zero": 0},
        ),
    ],
    ids=["a default without a value is left out", "zero is a value", "no more than its type"],
)
def test_fields_are_keys(result: Result, document: dict[str, Any]) -> None:
    assert plain(result) == document


@dataclass(frozen=True)
class Holder:
    error: CloudError
    numbers: tuple[int, ...] = (1,)


def test_data_classes_and_errors_are_printed_too() -> None:
    attempt = Attempt("ml.g6.xlarge", 1, None, 2.5, "no-capacity", "full")
    full = InsufficientCapacity("none left", Fix("wait", ("peagle", "list")))
    full.tried = [attempt]
    document = plain(Holder(full))
    assert document["numbers"] == [1]
    assert document["error"]["command"] == ["peagle", "list"]
    assert document["error"]["tried"][0]["outcome"] == "no-capacity"
    with pytest.raises(AttributeError):
        plain({"unknown": object()})


@pytest.mark.parametrize(("copies", "keys"), [
    (False, ["min_instances", "max_instances"]), (True, ["min_copies", "max_copies"]),
])  # fmt: skip
def test_bounds_are_named_by_what_they_count(copies: bool, keys: list[str]) -> None:
    named = Bounds(1, 4, 8.0, scales_copies=copies).by_name
    assert named == {keys[0]: 1, keys[1]: 4, "target_concurrency": 8.0}


@pytest.mark.parametrize("unknown", [{}, {"log": CloudError("denied", "ask", "access-denied")}])
def test_drift_lists_what_could_not_be_read(unknown: dict[str, CloudError]) -> None:
    drift = Drift(
        name="n", region="r", drifted=True, fields=(Change("model.image", "b", "a"),),
        compared=("role",), unknown=unknown,
    )  # fmt: skip
    document = plain(drift)
    assert document["fields"] == [{"field": "model.image", "planned": "a", "found": "b"}]
    listed = document["unknown"]
    assert [(entry["area"], entry["code"]) for entry in listed] == [
        (area, error.code) for area, error in unknown.items()
    ]


@pytest.mark.parametrize("error", [None, CloudError("busy", code="resource-busy")])
def test_what_was_reaped_says_why_it_was_not(error: CloudError | None) -> None:
    record = Deployment(name="n", scope="1", account="1", region="r", resources=(MODEL,))
    reaped = Reaped(
        record=record, name="n", region="r", ended_at=None, price_per_hour_usd=0.0, owner="peagle",
        resources=record.resources, removed=(MODEL,), error=error,
    )  # fmt: skip
    document = plain(reaped)
    assert "record" not in document
    assert document["resources"] == document["removed"] == [{"type": "Model", "name": "m"}]
    assert document["kept"] == []
    assert (document["error"] and document["error"]["code"]) == (error and error.code)


@pytest.mark.parametrize("made", [True, False])
def test_a_resource_is_confirmed_once_aws_has_it(made: bool) -> None:
    resource = MODEL.model_copy(update={"made": made})
    record = Deployment(name="n", scope="1", account="1", region="r", resources=(resource,))
    assert plain(record.listed_resources) == [{"type": "Model", "name": "m", "confirmed": made}]


@pytest.mark.parametrize(("prices", "increase"), [
    ((1.0, 1.25), 0.25), ((2.0, 1.0), -0.5), ((0.0, 1.0), None), ((None, 1.0), None),
    ((1.0, None), None), ((1.0, 0.0), -1.0),
])  # fmt: skip
def test_the_price_rises_by_a_share_of_the_first(
    prices: tuple[float | None, float | None], increase: float | None
) -> None:
    first, second = ({"price_per_hour_usd": price} for price in prices)
    comparison = PlanComparison((first, second), ())
    assert comparison.price_increase == increase


def test_usage_is_in_utc() -> None:
    document = plain(Usage("n", "aws", "InService", 59.6, 60.0))
    assert document["at"] == "1970-01-01T00:00:59+00:00"


def status(**fields: Any) -> DeploymentStatus:
    """A status with these fields, the others empty."""
    values: dict[str, Any] = dict.fromkeys(DeploymentStatus.model_fields) | fields
    return DeploymentStatus.model_construct(**values)


@pytest.mark.parametrize(("copies", "running"), [(None, None), (2, 0), (2, 2)])
def test_copies_are_keys_of_endpoints_that_have_some(
    copies: int | None, running: int | None
) -> None:
    document = plain(status(copies=copies, copies_running=running))
    assert ("copies" in document, "copies_running" in document) == (copies is not None,) * 2
    assert document["scaling"] is None


@pytest.mark.parametrize(("fields", "text"), [
    ({}, ""),
    ({"acceptance_length": 2.5, "drafts": 200}, ": acceptance length 2.50 over 200 drafts"),
    (
        {"acceptance_length": 2.5, "drafts": 9, "acceptance_floor": 2.1,
         "acceptance_floor_source": "option"},
        ": acceptance length 2.50 over 9 drafts, at least 2.10 required by --floor",
    ),
    ({"acceptance_length": 2.5, "drafts": 9, "acceptance_floor": 2.1, "stand_in": "tiny"},
     ": acceptance length 2.50 over 9 drafts"),
])  # fmt: skip
def test_a_measured_acceptance_has_its_floor(fields: dict[str, Any], text: str) -> None:
    assert measured(status(**fields)) == text


@pytest.mark.parametrize(("floor", "source", "is_said"), [
    (None, None, False), (1.0, "catalogue", False), (1.01, "catalogue", True), (2.0, None, True),
])  # fmt: skip
def test_a_floor_of_one_is_not_said(
    floor: float | None, source: FloorSource | None, is_said: bool
) -> None:
    assert bool(floor_text(floor, source)) is is_said


@pytest.mark.parametrize(
    ("state", "where"), [("running", "1 x t running"), ("not-in-service", "not in service")]
)
def test_a_comparison_that_does_not_run_says_so(state: str, where: str) -> None:
    values: dict[str, Any] = {
        "state": state, "share": 0.1, "variant": "candidate", "pair": "a", "k": None,
        "instances_running": 1, "instance_type": "t",
    }  # fmt: skip
    plan = ComparedPlan.model_construct(**values)
    assert comparison_text(plan).endswith(f"no speculation, {where}")
    assert comparison_text(None) == ""


LOAD = BenchLoad(BenchWorkload("short-prompt", Workload(128, 400)), 8, 16)


def test_the_progress_of_a_sweep_that_has_ended_is_its_last_row() -> None:
    done = SweepProgress(2, 2, NO_SPECULATION, LOAD, 0.0, None)
    assert progress_text(done) == "row 2 of 2: no speculation, short-prompt x 8"
