"""The account of a walk, and what others do in it: other machines, scripts, the console."""

import shutil
from contextlib import suppress
from typing import Any

from botocore.exceptions import ClientError

from peagle.sandbox.client import set_quota
from tests.faults.account import INSTANCE_TYPE, NAME, Resources
from tests.faults.commands import Commands
from tests.sandbox.sandboxes import Sandbox

Status = dict[str, Any] | None
"""The document of ``status``; ``None`` without a deployment."""
_TEMPLATE_BUCKET = "peagle-sagemaker-template"


class World:
    """One account, and the machine on which the commands run."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.commands = Commands(sandbox)
        self.inventory = self.commands.inventory
        self._records = sandbox.home / "deployments"
        self._other_records = sandbox.home / "other-machine"

    def begin(self) -> None:
        """Set what the end of the last walk has reset."""
        with self.sandbox.at_home():
            set_quota(INSTANCE_TYPE, 20)

    def others_do(self, action: str) -> None:
        """What is not a command of this toolkit; nothing where it is impossible."""
        with suppress(ClientError):
            getattr(self, f"_{action.replace('-', '_')}")()

    def status(self) -> Status:
        """What ``status`` says."""
        return self.commands.status()

    def nothing_is_lost(self) -> Status:
        """Raise Broken unless everything is shown, and the reported cost is the account's; what
        ``status`` says."""
        resources = self.inventory.resources()
        return self.commands.nothing_is_lost(frozenset(filter(_is_of_template, resources)))

    def left(self) -> Resources:
        """What exists and is not the template's bucket, which no deploy created."""
        resources = self.inventory.resources() - self.commands.empty
        return frozenset(resource for resource in resources if not _is_of_template(resource))

    def _by_template(self) -> None:
        self.inventory.deploy_by_template()

    def _other_machine(self) -> None:
        """The next commands run on the other of two machines."""
        aside = self._records.with_name("aside")
        for old, new in (
            (self._records, aside),
            (self._other_records, self._records),
            (aside, self._other_records),
        ):
            if old.exists():
                old.rename(new)

    def _new_machine(self) -> None:
        shutil.rmtree(self._records, ignore_errors=True)

    def _endpoint_deleted(self) -> None:
        """In the console."""
        self.inventory.account.sagemaker.delete_endpoint(EndpointName=NAME)
        self.inventory.wait_until_stable()

    def _scaled(self) -> None:
        """By an alarm, or in the console."""
        self.inventory.account.sagemaker.update_endpoint_weights_and_capacities(
            EndpointName=NAME,
            DesiredWeightsAndCapacities=[{"VariantName": "AllTraffic", "DesiredInstanceCount": 2}],
        )
        self.inventory.wait_until_stable()

    def _scaling_target(self) -> None:
        self.inventory.account.client("application-autoscaling").register_scalable_target(
            ServiceNamespace="sagemaker",
            ResourceId=f"endpoint/{NAME}/variant/AllTraffic",
            ScalableDimension="sagemaker:variant:DesiredInstanceCount",
            MinCapacity=1,
            MaxCapacity=2,
        )


def _is_of_template(resource: tuple[str, str]) -> bool:
    """Whether it is the bucket that a template was given, or what was uploaded to it."""
    return _TEMPLATE_BUCKET in resource[1]
