"""Watch the AWS calls of a command in this process, and interrupt or kill it at one of them."""

import functools
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import botocore.session
import pytest
from botocore.client import BaseClient
from botocore.loaders import create_loader

from peagle.aws import client
from peagle.deploy import records
from peagle.store import write_text

RECORD = "record"
"""The name of a write of the deployment's record, among the operations of AWS."""
Watcher = Callable[[str, int], object]
"""Gets an operation such as ``sagemaker:CreateModel``, and the how manieth call of it this is."""
_TIMEOUTS = (2, 2, 2)
"""Attempts, and seconds to connect and read: a late answer of a trial comes after more."""
LATE_SECONDS = 3.0
Result = TypeVar("Result")


def _unwatched(operation: str, call: int) -> None:
    """Do nothing."""


@contextmanager
def on_call(before: Watcher = _unwatched, after: Watcher = _unwatched) -> Iterator[None]:
    """Call ``before`` and ``after`` around every AWS call and every write of a record in this
    process, however these end."""
    make = BaseClient._make_api_call
    seen: Counter[str] = Counter()
    counting = threading.Lock()

    def watched(operation: str, run: Callable[[], Any]) -> Any:
        with counting:  # files are uploaded by several threads
            seen[operation] += 1
            call = seen[operation]
        before(operation, call)
        try:
            return run()
        finally:
            after(operation, call)

    def observed(self: Any, operation_name: str, parameters: Any) -> Any:
        operation = f"{self.meta.service_model.signing_name}:{operation_name}"
        return watched(operation, lambda: make(self, operation_name, parameters))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", observed)
        patch.setattr(
            records, "write_text", lambda *args: watched(RECORD, lambda: write_text(*args))
        )
        yield


@contextmanager
def short_timeouts() -> Iterator[None]:
    """Let a late answer count as lost within seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_TIMEOUTS", _TIMEOUTS)
        patch.setattr(client, "_TIMEOUTS_BY_SERVICE", {})
        yield


@contextmanager
def shared_models() -> Iterator[None]:
    """Read botocore's models once for all commands of this process: a third of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(create_loader))
        yield


def kill_here() -> None:
    """End this process as a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt_here() -> None:
    """Ctrl-C; only between two calls of the main thread, where it takes effect at once."""
    if threading.current_thread() is threading.main_thread():
        signal.raise_signal(signal.SIGINT)


def run_apart(run: Callable[[], Result]) -> tuple[int, Result | None]:
    """Run in a process of its own, which may be killed: its exit code, or minus the signal; and the
    result, if it came to one."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=lambda: there.send(run()))
    process.start()
    there.close()
    try:
        result: Result | None = here.recv()
    except EOFError:
        result = None
    process.join()
    here.close()
    assert process.exitcode is not None
    return process.exitcode, result
