"""Scaling in the sandbox: engines start and end by the load, and no request is lost."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from peagle.sandbox.client import set_scaling_speed
from tests.sandbox.sandboxes import INSTANCE_TYPE, Account, refusal, until
from tests.support import with_keys

pytestmark = pytest.mark.sandbox
DEPLOY = (
    "deploy", "tiny", "--sandbox", "--yes", "--instance-type", INSTANCE_TYPE,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _fast(room: None) -> Iterator[None]:
    """A minute of scaling passes in a fifth of a second."""
    set_scaling_speed(300)
    yield
    set_scaling_speed(1)


def running(account: Account, name: str) -> int:
    (variant,) = account.describe(name)["ProductionVariants"]
    return int(variant.get("CurrentInstanceCount") or 0)


class Load:
    """Clients that send one slow request after another; every answer and every error counts."""

    def __init__(self, account: Account, name: str) -> None:
        self._account, self._name = account, name
        self._stop = threading.Event()
        self.answers = 0
        self.errors: list[str] = []

    def start(self, clients: int) -> None:
        self._threads = [threading.Thread(target=self._send) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while not self._stop.is_set():
            try:
                self._account.invoke(
                    self._name, {"do": "stream", "chunks": ["{", "}"], "gap": 0.15}
                )
            except (ClientError, OSError) as error:
                self.errors.append(str(error))
            else:
                self.answers += 1


def test_a_deployment_scales_out_and_in_without_a_lost_request(
    account: Account, tmp_path: Path
) -> None:
    name = "peagle-tiny"
    deploy = with_keys(tmp_path, DEPLOY, max_instances=2, target_concurrency=2)
    document = account.sandbox.json(*deploy)
    assert document["scaling"] == {
        "min_instances": 1,
        "max_instances": 2,
        "target_concurrency": 2.0,
    }
    heavy, light = Load(account, name), Load(account, name)
    light.start(1)
    heavy.start(4)
    until(lambda: running(account, name), lambda count: count == 2)
    heavy.end()
    until(lambda: running(account, name), lambda count: count == 1)
    light.end()
    assert (heavy.errors, light.errors) == ([], [])
    assert heavy.answers > 0
    scaling = account.client("application-autoscaling")
    rows = account.sandbox.json("list", "--sandbox")["deployments"]
    shown = {key: rows[0][key] for key in ("instances_running", "min_instances", "max_instances")}
    assert shown == {"instances_running": 1, "min_instances": 1, "max_instances": 2}
    refused = account.sandbox.peagle("scale", name, "--to", "2", "--sandbox", "--yes")
    assert (refused.returncode, "--min 2" in refused.stderr) == (3, True)
    fixed = account.sandbox.json("scale", name, "--off", "--to", "2", "--sandbox", "--yes")
    assert (fixed["scaling"], fixed["instances_running"]) == (None, 2)
    again = account.sandbox.json("scale", name, "--max", "3", "--sandbox", "--yes")
    assert again["scaling"]["max_instances"] == 3
    account.sandbox.json("destroy", name, "--sandbox", "--yes")
    assert scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"] == []
    policies = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")
    assert policies["ScalingPolicies"] == []


def test_copies_sleep_and_wake_with_the_first_request(account: Account) -> None:
    name, sandbox = "peagle-asleep", account.sandbox
    place = ("--name", name, "--instance-type", "ml.g6.12xlarge", "--sandbox", "--yes")
    sandbox.json("deploy", "tiny", "--copies", "1", "--scale-to-zero", *place)
    until(lambda: sandbox.json("status", name, "--sandbox")["copies_running"], lambda now: now == 0)
    set_scaling_speed(1)  # it stays awake then
    answer = sandbox.json("invoke", name, "hello", "--max-tokens", "4", "--sandbox")
    assert answer["waited_seconds"] > 0
    sandbox.json("destroy", name, "--sandbox", "--yes")


def test_targets_that_application_auto_scaling_refuses(account: Account, live: str) -> None:
    scaling = account.client("application-autoscaling")
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{live}/variant/AllTraffic",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    }
    other = {**target, "ResourceId": "endpoint/none/variant/AllTraffic"}
    register = scaling.register_scalable_target
    assert refusal(scaling.deregister_scalable_target, **target)[0] == "ObjectNotFoundException"
    assert refusal(register, **other, MinCapacity=1, MaxCapacity=2)[0] == "ValidationException"
    register(**target, MinCapacity=1, MaxCapacity=2)
    scaling.deregister_scalable_target(**target)
