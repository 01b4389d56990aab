"""Copies that scale, also to zero: registered, changed, kept by updates, and removed."""

from __future__ import annotations

import pytest

from peagle.render.resources import copies_limit_name
from tests.unit.cli.commands import NAME, Terminal, without_record
from tests.unit.cli.test_copies import COPIES, status_of, terminal

pytestmark = pytest.mark.thorough

TARGET = f"inference-component/{NAME}"
BOUNDS = (*COPIES, "--max-instances", "3")
ALARM = f"{NAME}-wake-up"

__all__ = ["terminal"]


def scaled(terminal: Terminal, *words: str) -> None:
    terminal.succeeds(*(words or BOUNDS))


def copies(terminal: Terminal) -> int:
    return int(terminal.cloud.components.copies_on(NAME))


def test_copies_are_scaled_within_the_bounds_of_the_instances(terminal: Terminal) -> None:
    scaled(terminal)
    assert terminal.cloud.bounds == {TARGET: (4, 12)}
    policy = terminal.cloud.policies[TARGET]["TargetTrackingScalingPolicyConfiguration"]
    target = status_of(terminal)["scaling"]["target_concurrency"]
    assert policy["TargetValue"] == target
    assert "PerCopy" in policy["PredefinedMetricSpecification"]["PredefinedMetricType"]
    (config,) = terminal.cloud.configs.values()
    managed = config["ProductionVariants"][0]["ManagedInstanceScaling"]
    assert (managed["MinInstanceCount"], managed["MaxInstanceCount"]) == (1, 4)
    assert status_of(terminal)["scaling"] == {
        "min_copies": 4,
        "max_copies": 12,
        "target_concurrency": target,
    }
    assert terminal.cloud.made_alarms == {}


def test_an_update_keeps_the_number_of_copies_that_scaling_chose(terminal: Terminal) -> None:
    scaled(terminal)
    terminal.cloud.components.scale(0, NAME, {"CopyCount": 7})
    status_of(terminal)  # the change ends
    scaled(terminal, *BOUNDS, "--k", "3")
    assert copies(terminal) == 7
    assert terminal.cloud.bounds == {TARGET: (4, 12)}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--max", "13"), "hold at most 12"),
        (("--off", "--to", "13"), "13 copies do not fit"),
        (("--min", "0"), "deploy with --scale-to-zero under another --name"),
    ],
)
def test_more_copies_than_the_instances_hold_are_refused(
    terminal: Terminal, words: tuple[str, ...], text: str
) -> None:
    scaled(terminal)
    refused = terminal.run("scale", NAME, *words, "--yes")
    assert (refused.code, text in refused.err) == (3, True), refused.err


def test_destroy_ends_the_scaling_first(terminal: Terminal) -> None:
    scaled(terminal, *COPIES, "--scale-to-zero")
    without_record(terminal)
    terminal.cloud.alarms[ALARM] = NAME  # where all alarms are listed
    done = terminal.succeeds("destroy", NAME, "--yes")
    assert f"removed Alarm {ALARM}" in done.out
    assert ALARM not in done.err
    calls = terminal.cloud.calls
    assert calls.index("deregister_scalable_target") < calls.index("delete_inference_component")
    assert (terminal.cloud.scaled, terminal.cloud.made_alarms) == (set(), {})


def test_drift_of_what_wakes_and_ends_copies(terminal: Terminal) -> None:
    scaled(terminal, *COPIES, "--scale-to-zero", "--max-instances", "2", "--ttl", "8h")
    cloud, ends = terminal.cloud, copies_limit_name("us-east-1", NAME)

    def drifted() -> list[str]:
        return [one["field"] for one in terminal.run("drift", NAME, "--json").document["fields"]]

    assert drifted() == []
    cloud.made_alarms[ALARM]["Threshold"] = 5.0
    cloud.scheduler.schedules[ends]["State"] = "DISABLED"
    assert drifted() == [f"alarm.{ALARM}.Threshold", f"schedule.{ends}.State"]
    cloud.wake_up_policies.clear()
    del cloud.made_alarms[ALARM], cloud.scheduler.schedules[ends]
    assert drifted() == ["wake_up.policy", f"alarm.{ALARM}", f"schedule.{ends}"]
