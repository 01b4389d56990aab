"""The sandbox's autoscaler, with its own metrics and time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from moto.core.exceptions import ServiceException

from peagle.sandbox.scaling import Autoscaler, ScaledTarget, Tracking, decide, set_speed

NOW = 1_800_000_000.0
POLICY = Tracking(target=4, scale_in_cooldown=600, scale_out_cooldown=60)
RESOURCE, DIMENSION = "endpoint/e/variant/v", "sagemaker:variant:DesiredInstanceCount"


@dataclass
class Scene:
    """An endpoint whose ``load`` its instances share, second by second."""

    count: int = 1
    busy: bool = False
    refused: str = ""
    now: float = NOW
    policy: Tracking | None = POLICY
    bounds: tuple[int, int] = (1, 4)
    is_woken: bool = False

    def __post_init__(self) -> None:
        self.scaler = Autoscaler()

    def pass_seconds(self, seconds: int, load: float) -> None:
        """The autoscaler follows every second."""
        for _ in range(seconds):
            self.now += 1
            self.scaler.follow(self.variant(load), self.now)

    def variant(self, load: float = 0.0) -> ScaledTarget:
        return ScaledTarget(
            "us-east-1", RESOURCE, DIMENSION, load / max(self.count, 1), *self.bounds,
            self.policy, self.count, self.busy, self.set_count, self.is_woken,
        )  # fmt: skip

    def set_count(self, count: int) -> None:
        if self.refused:
            raise ServiceException(self.refused)
        self.count = count


def test_a_load_above_the_target_starts_as_many_instances_as_it_needs() -> None:
    scene = Scene()
    scene.pass_seconds(25, load=9)
    assert scene.count == 1
    scene.pass_seconds(20, load=9)
    assert scene.count == 3  # 9 requests, 4 each


def test_fewer_instances_after_15_minutes_and_the_cooldown() -> None:
    scene = Scene(count=3)
    scene.pass_seconds(890, load=3)
    assert scene.count == 3
    scene.pass_seconds(30, load=3)

    assert scene.count == 1


def test_what_was_measured_during_a_change_does_not_count() -> None:
    scene = Scene(busy=True)
    scene.pass_seconds(100, load=9)
    scene.busy = False
    scene.pass_seconds(20, load=9)
    assert scene.count == 1
    scene.pass_seconds(70, load=9)

    assert scene.count == 3


def test_bounds_hold_without_a_load() -> None:
    scene = Scene(bounds=(2, 4))
    scene.pass_seconds(1, load=0)

    assert scene.count == 2


def test_time_passes_faster() -> None:
    scene = Scene()
    scene.scaler.speed = 100
    scene.pass_seconds(6, load=9)
    assert scene.count == 3
    scene.pass_seconds(40, load=1)

    assert scene.count == 1


def test_activities_are_kept_with_their_failures() -> None:
    scene = Scene(refused="the quota is 2")
    scene.pass_seconds(50, load=9)
    (failed,) = scene.scaler.activities("us-east-1", "endpoint/e/variant/v")
    assert failed["StatusCode"] == "Failed"
    assert "the quota is 2" in failed["StatusMessage"]
    assert scene.scaler.activities("eu-west-1", None) == []
    scene.refused = ""
    scene.pass_seconds(120, load=9)

    latest, *_ = scene.scaler.activities("us-east-1", None)
    assert latest["Description"] == "Setting desired instance count to 3."


def test_a_policy_that_the_sandbox_does_not_follow_only_has_bounds() -> None:
    scene = Scene(policy=None)
    assert decide(scene.variant(), [100.0], [100.0], 1e9) == 1


@pytest.mark.parametrize("speed", [0, 0.5, 1001, float("nan")])
def test_an_impossible_speed_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        set_speed(speed)


def test_a_request_without_a_copy_wakes_one_at_once() -> None:
    scene = Scene(bounds=(0, 4))
    scene.pass_seconds(1000, load=0)
    assert scene.count == 0
    scene.is_woken = True
    scene.pass_seconds(1, load=0)

    assert scene.count == 1


def test_nothing_is_left_once_nobody_asks_for_15_minutes() -> None:
    scene = Scene(bounds=(0, 4))
    scene.pass_seconds(890, load=0)
    assert scene.count == 1
    scene.pass_seconds(30, load=0)

    assert scene.count == 0
