"""The log is read once, in order, and without control characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peagle.aws.logs import Tail, clean
from tests.unit.aws.cloud import START, service_error
from tests.unit.aws.world import NAME, World


def test_every_line_is_read_once_even_with_equal_timestamps(world: World) -> None:
    tail = Tail(world.aws, NAME, START)
    assert tail.drain() == []
    world.cloud.write_log("one")
    assert [event.message for event in tail.drain()] == ["one"]
    world.cloud.write_log("two, in the same millisecond")
    assert [event.message for event in tail.drain()] == ["two, in the same millisecond"]
    world.cloud.now += 1
    world.cloud.write_log("three")
    world.cloud.write_log("")

    assert [event.message for event in tail.drain()] == ["three", ""]
    assert tail.last_line == "three"
    assert tail.drain() == []


def test_a_late_line_is_read(world: World) -> None:
    tail = Tail(world.aws, NAME, START)
    world.cloud.now += 20
    world.cloud.write_log("quick stream")
    tail.drain()
    world.cloud.now -= 15
    world.cloud.write_log("slow stream")

    assert [event.message for event in tail.drain()] == ["slow stream"]
    assert tail.drain() == []


def test_lines_before_since_are_left_out(world: World) -> None:
    world.cloud.write_log("long ago")
    world.cloud.now += 60

    assert Tail(world.aws, NAME, START + 30).drain() == []


def test_a_denied_log_does_not_stop_a_deploy(world: World) -> None:
    def deny(operation: str) -> None:
        raise service_error("AccessDeniedException", "denied", "FilterLogEvents")

    world.cloud.before = deny
    tail = Tail(world.aws, NAME, START)

    assert tail.drain() == []
    assert "logs:FilterLogEvents" in tail.last_line


@given(st.text())
def test_control_characters_are_removed(text: str) -> None:
    assert not any(ord(character) < 32 and character != "\t" for character in clean(text))
    assert "\x7f" not in clean(text)


def test_plain_text_is_unchanged() -> None:
    assert clean("\x1b[1;31merror\x1b[0m: naïve | 日本\r\n") == "error: naïve | 日本"
