"""The sandbox's autoscaler, with its own metrics and time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from peagle.sandbox.scaling import Autoscaler, ScaledTarget, set_speed

POLICY = {"TargetValue": 4, "ScaleInCooldown": 600, "ScaleOutCooldown": 60}
RESOURCE = "endpoint/e/variant/v"


@dataclass
class Scene:
    """An endpoint whose ``load`` its instances share, second by second."""

    count: int = 1
    busy: bool = False
    now: float = 1_800_000_000.0
    policy: Mapping[str, Any] | None = field(default_factory=POLICY.copy)
    bounds: tuple[int, int] = (1, 4)
    is_woken: bool = False

    def __post_init__(self) -> None:
        self.scaler = Autoscaler()

    def pass_seconds(self, seconds: int, load: float) -> int:
        """The autoscaler follows every second; the number of instances after them."""
        for _ in range(seconds):
            self.now += 1
            target = ScaledTarget(
                "us-east-1", RESOURCE, load / max(self.count, 1), *self.bounds,
                self.policy, self.count, self.busy, self.set_count, self.is_woken,
            )  # fmt: skip
            self.scaler.follow(target, self.now)
        return self.count

    def set_count(self, count: int) -> None:
        self.count = count


@pytest.mark.parametrize(("scene", "passed"), [
    ({}, [(25, 9, 1), (20, 9, 3)]),  # 9 requests, 4 each, once they last 30 s
    ({}, [(20, 9, 1), (600, 3, 1)]),
    ({}, [(300, 100, 4)]),
    ({"count": 3}, [(890, 3, 3), (30, 3, 1)]),  # after 15 minutes and the cooldown
    ({"count": 2}, [(2000, 7.6, 2)]),  # 95 % of the target
    ({"policy": POLICY | {"ScaleInCooldown": 3000}}, [(60, 8, 2), (2800, 1, 2), (400, 1, 1)]),
    ({"bounds": (2, 4)}, [(1, 0, 2)]),
    ({"policy": None}, [(2000, 100, 1)]),
    ({"bounds": (0, 4)}, [(890, 0, 1), (30, 0, 0)]),
])  # fmt: skip
def test_number_follows_load(scene: dict[str, Any], passed: list[tuple[int, float, int]]) -> None:
    endpoint = Scene(**scene)
    for seconds, load, count in passed:
        assert endpoint.pass_seconds(seconds, load) == count


def test_what_was_measured_during_a_change_does_not_count() -> None:
    scene = Scene(busy=True)
    scene.pass_seconds(100, load=9)
    scene.busy = False
    assert scene.pass_seconds(20, load=9) == 1
    assert scene.pass_seconds(70, load=9) == 3


def test_time_passes_faster() -> None:
    scene = Scene()
    scene.scaler.speed = 100
    assert scene.pass_seconds(6, load=9) == 3
    assert scene.pass_seconds(40, load=1) == 1
    for speed in (0, 0.5, 1001, float("nan")):
        with pytest.raises(ValueError, match="1 to 1000"):
            set_speed(speed)
