"""Scaling with real vLLM and the tiny pair: from one engine to two and back, without a lost
request."""

from __future__ import annotations

import json
import threading

import pytest
from botocore.exceptions import ClientError

from peagle.protocol import request_body
from peagle.sandbox.client import set_scaling_speed
from tests.engine.conftest import TINY
from tests.sandbox.sandboxes import Account, Sandbox, until

pytestmark = [pytest.mark.engine, pytest.mark.sandbox, pytest.mark.exhaustive]
SPEED = 300
"""A minute of scaling passes in a fifth of a second."""


class Clients:
    """Each sends one prompt after another; every answer and every error counts."""

    def __init__(self, account: Account, count: int) -> None:
        self._account, self._end = account, threading.Event()
        self.answers, self.errors = 0, list[str]()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        body = json.dumps(request_body("What does textwrap.wrap do?", chat=True, max_tokens=64))
        while not self._end.is_set():
            try:
                answer = self._account.runtime.invoke_endpoint(
                    EndpointName=TINY, Body=body, ContentType="application/json"
                )
                tokens = json.loads(answer["Body"].read())["usage"]["completion_tokens"]
            except (ClientError, OSError, KeyError) as error:
                self.errors.append(repr(error))
                continue
            self.answers += tokens > 0

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def running(account: Account) -> int:
    (variant,) = account.describe(TINY)["ProductionVariants"]
    return int(variant.get("CurrentInstanceCount") or 0)


def test_from_one_instance_to_two_and_back_without_a_lost_request(
    printed: str, sandbox: Sandbox
) -> None:
    account = Account(sandbox)
    bounds = ("--max", "2", "--target-concurrency", "2")
    began = sandbox.json("scale", TINY, *bounds, "--sandbox", "--yes")
    assert (began["instances_running"], began["scaling"]["max_instances"]) == (1, 2)
    set_scaling_speed(SPEED)
    light, heavy = Clients(account, 1), Clients(account, 4)
    try:
        until(lambda: running(account), lambda count: count == 2, seconds=180)
        after = heavy.answers
        until(lambda: heavy.answers, lambda count: count > after + 4)  # with both engines
        heavy.end()
        until(lambda: running(account), lambda count: count == 1, seconds=120)
    finally:
        heavy.end()
        light.end()
        set_scaling_speed(1)
    assert (light.errors, heavy.errors) == ([], [])
    assert min(light.answers, heavy.answers) > 4
    ended = sandbox.json("scale", TINY, "--off", "--sandbox", "--yes")
    assert (ended["instances_running"], ended["scaling"]) == (1, None)
