"""What the fake account is asked for: ``aws_calls.json`` and ``interruptions.json``.

A step is a command line, or one with what changes in the account before it: attributes of the
``Cloud``, or ``acceptance``, the acceptance length of its engine.
"""

import copy
import json
from pathlib import Path
from typing import Any

from tests.golden.account import NAME, Account, as_set, masked
from tests.support import Done

Step = str | tuple[str, dict[str, Any]]
_DEPLOY = "deploy tiny --instance-type ml.g5.xlarge --role peagle-execution --yes"
_COPIES = "deploy tiny --instance-type ml.g5.12xlarge --copies 4 --role peagle-execution --yes"
_EVERYTHING = f"{_DEPLOY} --ttl 8h --observe --max-instances 2"
_OBSERVED = f"{_DEPLOY} --observe --rollout canary --instance-count 2 --slo ttft=0.5,itl=0.02"
_FULL = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
_NO_CAPACITY = [("Creating", None), ("Failed", _FULL)]
_NO_PING = "The primary container did not pass the ping health check."
_UNDONE = [("Updating", None), ("RollingBack", None), ("InService", _NO_PING)]
SCENARIOS: dict[str, tuple[Step, ...]] = {
    "create": (_DEPLOY,),
    "create-fails": ((_DEPLOY, {"next_scripts": [[("Creating", None), ("Failed", _NO_PING)]]}),),
    "again": (_DEPLOY, _DEPLOY, "list", f"status {NAME}", f"drift {NAME}", f"prove {NAME}"),
    "update": (_DEPLOY, f"{_DEPLOY} --k 3", f"{_DEPLOY} --k 3"),
    "failing-update": (
        _DEPLOY,
        (f"{_DEPLOY} --k 3", {"next_scripts": [_UNDONE]}),
        f"status {NAME}",
        f"destroy {NAME} --yes",
    ),
    "rollback": (
        _DEPLOY,
        f"{_DEPLOY} --k 3",
        f"rollback {NAME} --yes",
        f"rollback {NAME} --yes",
        f"destroy {NAME} --previous --yes",
    ),
    "failed-proof": (
        (_DEPLOY, {"acceptance": 1.2}),
        (_DEPLOY, {"acceptance": 3.0}),
        (f"{_DEPLOY} --k 3", {"acceptance": 1.2}),
        f"{_DEPLOY} --k 4 --keep-unproved",
        (f"rollback {NAME} --yes", {"acceptance": 3.0}),
    ),
    "scale": (
        _DEPLOY,
        f"scale {NAME} --min 1 --max 3 --target-concurrency 4 --yes",
        f"{_DEPLOY} --k 3",
        f"scale {NAME} --off --to 2 --yes",
        f"scale {NAME} --to 1 --yes",
        f"{_DEPLOY} --min-instances 2 --max-instances 4",
        f"destroy {NAME} --yes",
    ),
    "scale-to-zero": (
        f"{_DEPLOY} --scale-to-zero --max-instances 2",
        f"scale {NAME} --min 1 --yes",
        f"scale {NAME} --min 0 --yes",
        f"destroy {NAME} --yes",
    ),
    "ttl": (
        f"{_DEPLOY} --ttl 8h",
        _DEPLOY,
        f"{_DEPLOY} --ttl 2d",
        f"{_DEPLOY} --no-limit",
        f"{_DEPLOY} --budget 5",
        ("reap --yes", {"now": 1_800_100_000.0}),
    ),
    "copies": (
        _COPIES,
        f"{_COPIES} --k 3",
        (f"{_COPIES} --k 4", {"acceptance": 1.2}),
        (f"rollback {NAME} --yes", {"acceptance": 3.0}),
        f"scale {NAME} --to 3 --yes",
        f"scale {NAME} --min 2 --max 4 --target-concurrency 2 --yes",
        f"{_COPIES} --ttl 8h",
        f"destroy {NAME} --yes",
    ),
    "observe": (_OBSERVED, f"{_OBSERVED} --k 3", _DEPLOY, f"destroy {NAME} --all --yes"),
    "company": (
        "deploy chat --environment staging --yes",
        "deploy chat --environment production --yes",
        "drift chat --environment production",
        "destroy chat --environment production --yes",
        "destroy chat --environment staging --all --yes",
    ),
    "comparison": (
        _DEPLOY,
        f"compare {NAME} --with 'tiny --k 3' --share 25% --yes",
        f"compare {NAME} --share 50% --yes",
        f"drop {NAME} --yes",
        f"compare {NAME} --with 'tiny --no-speculation' --yes",
        f"promote {NAME} --yes",
        f"rollback {NAME} --yes",
        f"compare {NAME} --with 'tiny --k 5' --yes",
        (f"promote {NAME} --yes", {"acceptance": 1.2}),
    ),
    "capacity": (
        (_DEPLOY, {"next_scripts": [_NO_CAPACITY]}),
        (
            f"{_DEPLOY} --fallback-instance-types ml.g5.2xlarge,ml.g6.xlarge",
            {"next_scripts": [_NO_CAPACITY, _NO_CAPACITY]},
        ),
        f"destroy {NAME} --yes",
        (f"{_DEPLOY} --retry-for 10m", {"next_scripts": [_NO_CAPACITY]}),
    ),
    "destroy": (_EVERYTHING, f"{_EVERYTHING} --k 3", f"destroy {NAME} --all --yes", "list"),
}
"""Its name -> the command lines, one after the other."""
_PROJECT = """\
defaults:
  region: us-east-1
  instance_type: ml.g5.xlarge
  role: peagle-execution
  subnets: [subnet-0a1b2c3d, subnet-0a1b2c3e]
  security_groups: [sg-0a1b2c3d]
  kms_key: alias/peagle
  tag: {team: search, cost-center: 12}
  name_prefix: acme-
  permissions_boundary: arn:aws:iam::123456789012:policy/Boundary
environments:
  staging:
    ttl: 8h
  production:
    instance_count: 2
    alarm_topic: arn:aws:sns:us-east-1:123456789012:on-call
    observe: true
    log_retention: 90
    rollout: linear
    rollout_step: 1
    baking_time: 5m
    capture_data: s3://acme-captured/chat
    capture_percent: 10
endpoints:
  chat:
    pair: tiny
"""


def record(folder: Path) -> dict[str, Any]:
    """The calls of each scenario, and what exists at its end."""
    return {name: _played(folder / name, steps) for name, steps in SCENARIOS.items()}


def record_interruptions(folder: Path) -> dict[str, Any]:
    """Ctrl-C after the effect of each call that changes something: what exists then, what is
    reported, what the same command does next, and what a destroy leaves."""
    lines: dict[str, tuple[tuple[str, ...], str]] = {
        "create": ((), _EVERYTHING),
        "update": ((_DEPLOY,), f"{_DEPLOY} --k 3"),
        "destroy": ((_EVERYTHING,), f"destroy {NAME} --yes"),
    }
    return {
        name: _interrupted(folder / name, before, line) for name, (before, line) in lines.items()
    }


def _played(folder: Path, steps: tuple[Step, ...]) -> dict[str, Any]:
    account = _prepared(folder)
    for step in steps:
        line, changed = (step, {}) if isinstance(step, str) else step
        account.peagle(line, **copy.deepcopy(changed))
    document: dict[str, Any] = masked(
        {"steps": account.steps, "exists": account.resources, "reads": as_set(account.reads)}
    )
    document["reads"].sort(key=json.dumps)
    return document


def _prepared(folder: Path) -> Account:
    folder.mkdir(parents=True)
    (folder / "peagle.yaml").write_text(_PROJECT, encoding="utf-8")
    account = Account(folder)
    account.cloud.topics["arn:aws:sns:us-east-1:123456789012:on-call"] = {}
    account.cloud.buckets["acme-captured"] = {}
    return account


def _interrupted(folder: Path, before: tuple[str, ...], line: str) -> list[Any]:
    account = _prepared(folder / "before")
    for earlier in before:
        account.peagle(earlier)
    ends: list[Any] = []
    while True:
        cut = account.copied(folder / str(len(ends)))
        cut.interrupt_after = len(ends) + 1
        done = cut.peagle(line)
        if cut.changes < cut.interrupt_after:
            return ends
        cut.interrupt_after = 0
        ends.append(masked(_end(cut, line, done)))


def _end(account: Account, line: str, done: Done) -> dict[str, Any]:
    cut, exists = account.steps[-1], account.resources
    status = account.peagle(f"status {NAME}")
    again = account.peagle(line)
    repeated, after = account.steps[-1], account.resources
    destroyed = account.peagle(f"destroy {NAME} --yes")
    return {
        "code": done.code,
        "changes": [operation for operation, _ in cut["changes"]],
        "exists": exists,
        "state": status.document.get("state") if status.code == 0 else status.code,
        "again": {
            "changes": [operation for operation, _ in repeated["changes"]],
            "code": again.code,
            "exists": after,
        },
        "destroyed": {"code": destroyed.code, "exists": account.resources},
    }
