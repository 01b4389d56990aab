"""Whether a command without faults ended as it must, in whatever state it found the account."""

import json
from typing import Any

from tests.faults.account import INSTANCE_TYPE, NAME
from tests.faults.commands import Broken
from tests.lifecycle.steps import Action
from tests.lifecycle.world import Status, World
from tests.support import Done


def judge(world: World, action: Action, done: Done, before: Status, after: Status) -> None:
    """Raise Broken unless the command, which found ``before``, ended and left what it must."""
    code = _error_code(done)
    if before and before["owner"] != "peagle" and code == "other-owner":
        return
    if action.kind == "deploy":
        _deploy(world, action, done, code, before, after)
    elif action.kind == "rollback":
        _rollback(done, code, before, after)
    elif action.kind == "destroy":
        _destroy(world, action, done, code)
    elif action.kind == "prove":
        _prove(action, done, code, before)
    else:
        _expect(done.code == 0, done)


def _deploy(
    world: World, action: Action, done: Done, code: str, before: Status, after: Status
) -> None:
    if action.scarce and not action.has("--fallback-instance-types"):
        # A fallback of an earlier step may serve the same K on another type.
        plan = {"k": action.k, "instance_type": INSTANCE_TYPE}
        changed = not (before and plan.items() <= before.items() and before["state"] in _SERVES)
        _expect(code == "insufficient-capacity" if changed else done.code == 0, done)
        return
    if done.code == 0 and action.has("--no-wait"):
        return
    if action.acceptance and done.code:
        _not_proved(action, done, code, before, after)
        return
    _expect(done.code == 0, done)
    right = {"state": "InService", "proved": True, "k": action.k, "owner": "peagle"}
    _compare(after, right)
    endpoints = [endpoint["EndpointName"] for endpoint in world.inventory.endpoints()]
    if endpoints != [NAME]:
        raise Broken(f"after the deploy there are the endpoints {endpoints}")


_SERVES = ("InService", "Unproved")
_NONE = ("no-such-deployment", "no-such-endpoint")
"""The codes of commands that find nothing of that name."""


def _not_proved(action: Action, done: Done, code: str, before: Status, after: Status) -> None:
    """A proof that fails leaves in service what was proved, unless ``--keep-unproved`` is set."""
    _expect(code in ("not-proved", "rolled-back"), done)
    good = before is not None and before["state"] == "InService" and before["k"] != action.k
    if good and not action.has("--keep-unproved"):
        assert before is not None
        _compare(after, {"state": "InService", "endpoint_config": before["endpoint_config"]})
    elif code == "not-proved":
        _compare(after, {"state": "Unproved", "k": action.k})


def _rollback(done: Done, code: str, before: Status, after: Status) -> None:
    if before is None:
        _expect(code == "no-such-deployment", done)
    elif before["previous"] is None and done.code == 0:  # it was interrupted, and is continued
        right = {"state": "InService", "endpoint_config": before["endpoint_config"]}
        _compare(after, right)
    elif before["previous"] is None:
        _expect(code == "no-previous-revision", done)
    elif code != "previous-missing":  # another machine has removed it
        _expect(done.code == 0, done)
        config = before["previous"]["endpoint_config"]
        _compare(after, {"state": "InService", "proved": True, "endpoint_config": config})


def _destroy(world: World, action: Action, done: Done, code: str) -> None:
    if action.has("--previous"):
        _expect(done.code == 0 or code == "rollback-unfinished", done)
        return
    _expect(done.code == 0, done)
    kept = {(resource["type"], resource["name"]) for resource in done.document["kept"]}
    if left := world.left() - kept:
        raise Broken(f"destroy left, and does not say so: {sorted(left)}")


def _prove(action: Action, done: Done, code: str, before: Status) -> None:
    if before is None or before["endpoint_status"] is None:
        _expect(code in _NONE, done)
    elif before["endpoint_status"] != "InService":
        _expect(code == "endpoint-not-in-service", done)
    else:
        _expect(code == ("not-proved" if action.acceptance else ""), done)


def _compare(status: Status, right: dict[str, Any]) -> None:
    wrong = {key: (status or {}).get(key) for key in right if (status or {}).get(key) != right[key]}
    if wrong:
        raise Broken(f"afterwards status says {wrong} instead of {right}")


def _expect(is_right: bool, done: Done) -> None:
    if not is_right:
        raise Broken(f"ended with {done.code}: {done.error}")


def _error_code(done: Done) -> str:
    """The code of the error; empty for a success."""
    return str(json.loads(done.error)["error"]["code"]) if done.code else ""
