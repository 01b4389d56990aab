"""What a walk is made of: commands, what others do in the account, and faults. Random, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from tests.faults.account import NAME
from tests.faults.calls import RECORD
from tests.faults.commands import FAULTS, INTERRUPTS, KILLS, LOW, STUCK, Fault
from tests.faults.trials import DEPLOY, OTHER_TYPE, UPDATE


@dataclass(frozen=True)
class Action:
    """A command of the toolkit; without one, something that others do (``world`` has it).

    ``k`` and ``instance_type`` are what a deploy asks for, ``acceptance`` that of the engines it
    starts. ``scarce``: AWS has no instance of the usual type. ``weight``: how often it is chosen.
    """

    command: tuple[str, ...] = ()
    weight: int = 2
    k: int | None = None
    acceptance: str = ""
    scarce: bool = False

    @property
    def kind(self) -> str:
        """The command's name; empty for what others do."""
        return self.command[0] if self.command else ""

    def has(self, option: str) -> bool:
        return option in self.command


_FALLBACK = ("--fallback-instance-types", OTHER_TYPE)
ACTIONS: Mapping[str, Action] = {
    "deploy": Action(DEPLOY, 5, k=7),
    "update": Action(UPDATE, 5, k=3),
    "update-to-two": Action((*DEPLOY, "--instance-count", "2"), 1, k=7),
    "update-of-type": Action((*DEPLOY[:3], OTHER_TYPE, "--yes"), 1, k=7),
    "failing-deploy": Action(DEPLOY, k=7, acceptance=LOW),
    "failing-update": Action(UPDATE, k=3, acceptance=LOW),
    "failing-kept": Action((*UPDATE, "--keep-unproved"), k=3, acceptance=LOW),
    "fallback": Action((*DEPLOY, "--k", "4", *_FALLBACK), k=4, scarce=True),
    "no-capacity": Action((*DEPLOY, "--k", "4"), 1, k=4, scarce=True),
    "request": Action((*DEPLOY, "--no-wait"), 1, k=7),
    "rollback": Action(("rollback", NAME, "--yes"), 5),
    "destroy": Action(("destroy", NAME, "--yes")),
    "destroy-all": Action(("destroy", NAME, "--all", "--yes"), 1),
    "destroy-previous": Action(("destroy", NAME, "--previous", "--yes")),
    "prove": Action(("prove", NAME)),
    "failing-prove": Action(("prove", NAME), 1, acceptance=LOW),
    "list": Action(("list",), 1),
    "by-template": Action(),
    "other-machine": Action(),
    "new-machine": Action(),
    "endpoint-deleted": Action(weight=1),
    "scaled": Action(weight=1),
    "scaling-target": Action(weight=1),
}
"""Name -> what happens."""
_STARTS = ("deploy", "deploy", "deploy", "update", "by-template", "failing-deploy", "request")
_READS = ("sagemaker:DescribeEndpoint", "sagemaker:ListTags", "tagging:GetResources")
_WAITS = ("sagemaker:DescribeEndpoint", "logs:FilterLogEvents", "sagemaker:InvokeEndpoint")
_MAKES = (
    "s3:CreateBucket", "s3:PutBucketTagging", "s3:HeadBucket", "s3:PutObject", "s3:ListObjectsV2",
    "s3:GetBucketTagging", "sagemaker:CreateModel", "sagemaker:CreateEndpointConfig",
    "sagemaker:CreateEndpoint", "sagemaker:UpdateEndpoint", "sagemaker:AddTags",
)  # fmt: skip
_REMOVES = (
    "sagemaker:DeleteEndpoint", "sagemaker:DeleteEndpointConfig", "sagemaker:DeleteModel",
    "sagemaker:DescribeEndpointConfig", "sagemaker:DescribeModel",
)  # fmt: skip
_REMOVES_ALL = (
    "s3:DeleteObjects", "s3:DeleteBucket", "s3:HeadBucket", "s3:GetBucketTagging",
    "application-autoscaling:DescribeScalableTargets", "logs:DescribeLogGroups",
)  # fmt: skip
OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "deploy": (*_READS, *_WAITS, *_MAKES, *_MAKES, *_REMOVES, RECORD, RECORD),
    "rollback": (*_READS, *_WAITS, "sagemaker:UpdateEndpoint", "sagemaker:AddTags", RECORD),
    "destroy": (*_READS, *_REMOVES, *_REMOVES, *_REMOVES_ALL, RECORD),
    "prove": (*_READS, *_WAITS, "sagemaker:AddTags", RECORD),
    "list": (*_READS, "sagemaker:DescribeEndpointConfig", "sagemaker:DescribeModel"),
}
"""Command -> the operations that may meet a fault."""
_ENDS_OF_ENDPOINTS = {
    "sagemaker:CreateEndpoint": ("insufficient-capacity", "out-of-service", STUCK),
    "sagemaker:UpdateEndpoint": ("insufficient-capacity", "out-of-service",
                                 "update-rollback-failed"),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One action and the faults that it meets; ``again``: it is repeated without them."""

    action: str
    faults: tuple[Fault, ...] = ()
    again: bool = True

    @property
    def definition(self) -> Action:
        return ACTIONS[self.action]

    @property
    def text(self) -> str:
        return " ".join([self.action, *(fault.name for fault in self.faults)])


@dataclass(frozen=True)
class Walk:
    """Steps from an empty account. ``broken`` is the violated invariant, if any."""

    steps: tuple[Step, ...]
    broken: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        return "; ".join(step.text for step in self.steps)

    def document(self) -> str:
        """As JSON, for a file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, document: str) -> Walk:
        walk: dict[str, Any] = json.loads(document)
        steps = tuple(
            Step(**{**step, "faults": tuple(Fault(**fault) for fault in step["faults"])})
            for step in walk["steps"]
        )
        return cls(steps, walk["broken"])


def random_walk(seed: int) -> Walk:
    """The walk of that number: always the same."""
    random = Random(seed)
    first = random.choice(_STARTS)
    names, weights = list(ACTIONS), [each.weight for each in ACTIONS.values()]
    actions = [first, *random.choices(names, weights, k=random.randint(2, 5))]
    return Walk(tuple(_step(random, action) for action in actions))


def _step(random: Random, action: str) -> Step:
    kind = ACTIONS[action].kind
    if kind not in OPERATIONS or random.random() < 0.4:
        return Step(action)
    if kind == "deploy" and random.random() < 0.15:
        return Step(action, _end_of_endpoint(random), again=random.random() < 0.7)
    operation = random.choice(OPERATIONS[kind])
    call = random.choice((1, 1, 1, 2, 2, 3, 5))
    often = random.choice((1, None))
    ends = (*KILLS, *KILLS, *INTERRUPTS)
    fault = random.choice(ends if operation == RECORD else (*FAULTS, *ends))
    times = often if fault in FAULTS else 1
    return Step(action, (Fault(operation, fault, call, times),), again=random.random() < 0.7)


def _end_of_endpoint(random: Random) -> tuple[Fault, ...]:
    """How the endpoint ends; one that is stuck is waited for until the command is ended."""
    operation = random.choice(list(_ENDS_OF_ENDPOINTS))
    kind = random.choice(_ENDS_OF_ENDPOINTS[operation])
    fault = Fault(operation, kind, times=None if kind == STUCK else 1)
    if kind != STUCK:
        return (fault,)
    end = random.choice((*KILLS, *INTERRUPTS))
    return fault, Fault("logs:FilterLogEvents", end, random.randint(1, 4))
