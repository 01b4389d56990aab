"""Rows of the tests of plans: a pair with options, and what the plan says, by key.

codes, errors, warnings, notes   the findings' codes, in order
has, lacks                       codes that are among them, and that are not
message CODE, fix CODE           a part of the text of the only finding with this code or level
because WHAT                     the reason's code, ``None`` for what the user chose
values WHAT, lacks values WHAT   some of its values; and names that are not among them
argument NAME, variable NAME     the value for the engine, and for the container
k, speed, basis, types, mounts   short names of parts of the plan
else                             an attribute by its path, ``None`` where a part is missing
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

from peagle.planning import Plan
from tests.unit.planning.small_catalog import because, codes, finding_of, reason_of

Expected = Mapping[str, Any]
_LEVELS = {"codes": None, "errors": "error", "warnings": "warning", "notes": "note"}
_SHORT = {"speed": "speed.tokens_per_second", "basis": "speed.basis"}
_PARTS = ("message", "fix")


def check_plan(made: Plan, expected: Expected) -> None:
    """Fail for the first key whose value is another one."""
    for key, value in expected.items():
        actual = read(made, key.removeprefix("lacks "))
        if key == "has":
            assert set(value) <= set(actual), (key, value, actual)
        elif key == "lacks" or key.startswith("lacks values "):
            assert not set(value) & set(actual), (key, value, actual)
        elif key.startswith("values "):
            assert {name: actual.get(name) for name in value} == value, (key, value, actual)
        elif key.partition(" ")[0] in _PARTS:
            assert value in str(actual), (key, value, actual)
        else:
            assert actual == value, (key, value, actual)


def read(made: Plan, key: str) -> Any:
    """What the plan says of this key."""
    kind, _, name = key.partition(" ")
    if kind in ("has", "lacks"):
        return codes(made)
    if kind in _LEVELS:
        return codes(made, _LEVELS[kind])
    if kind == "because":
        return because(made, name)
    if kind == "values":
        reason = reason_of(made, name)
        return reason.values if reason else None
    if kind in ("message", "fix"):
        return getattr(finding_of(made, name), kind)
    if kind == "argument":
        words = made.engine_arguments
        return words[words.index(f"--{name}") + 1] if f"--{name}" in words else None
    if kind == "variable":
        return made.environment.get(name)
    if kind == "types":
        return [row.instance_type for row in made.alternatives]
    if kind == "mounts":
        return [(mount.channel, mount.s3_uri) for mount in made.mounts]
    if kind == "k":
        return made.speculation.k if made.speculation else 0
    path = _SHORT.get(key, key).split(".")
    return reduce(lambda part, step: None if part is None else getattr(part, step), path, made)
