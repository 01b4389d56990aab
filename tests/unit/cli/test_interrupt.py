"""Ctrl-C ends a command wherever the signal arrives, also while the garbage collector works."""

from __future__ import annotations

import io
import signal
import time

import pytest

from peagle.cli.interrupt import interruptible

SOON = 10.0
"""Seconds after which the signal counts as lost."""


class Response(io.IOBase):
    """Ctrl-C is pressed while this one is finalized, as urllib3's are."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            signal.raise_signal(signal.SIGINT)


class Body(io.IOBase):
    """Ctrl-C is pressed while Python looks whether this one is closed already."""

    pressed = False

    @property
    def closed(self) -> bool:
        if not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return False


class Temporary:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def _finalize_and_work(kind: type[object], seconds: float) -> None:
    finalized = kind()
    del finalized
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize("kind", [Response, Body, Temporary])
def test_ctrl_c_during_a_finalizer_ends_the_command(kind: type[object]) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        _finalize_and_work(kind, SOON)


@pytest.mark.parametrize("kind", [Response, Body])
def test_python_alone_loses_ctrl_c_in_a_finalizer(kind: type[object]) -> None:
    """The reason for ``interruptible``."""
    try:
        _finalize_and_work(kind, 0.05)
    except KeyboardInterrupt:
        pytest.fail("Python no longer drops it: remove interruptible")


def test_ctrl_c_elsewhere_ends_the_command_at_once() -> None:
    def work() -> None:
        with interruptible():
            signal.raise_signal(signal.SIGINT)
            pytest.fail("still running")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before
