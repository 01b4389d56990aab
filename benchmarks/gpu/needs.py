"""Whether all that vLLM's metadata asks for is carried or on the host: every ``Requires-Dist``.

A package that is missing shows itself only after a minute of the lease, or as a row that ends in
the warm-up of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from benchmarks.gpu.engine_set import EngineSet

Unmet = Callable[[Requirement], str]
"""What is wrong with a requirement that the carried folder does not meet; "" if nothing."""


@dataclass(frozen=True)
class Needs:
    """What was found: how many requirements were looked at, and a line for each that is not met."""

    carried: int = 0
    by_host: int = 0
    by_choice: int = 0
    unmet: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"needs: {self.carried} carried, {self.by_host} of the host, "
            f"{self.by_choice} left out by choice, {len(self.unmet)} not met"
        )


def needs_of(tree: Path, engine: EngineSet, on_host: bool = False) -> Needs:
    """Follows every requirement from vLLM on, extras included, as Linux and this Python see them.

    ``on_host``: ask the running Python for what ``engine`` says the host has, instead of the list.
    """
    tree_has = {name_of(one): one for one in distributions(path=[str(tree)])}
    left_out = {canonicalize_name(name) for name in engine.left_out}
    listed = {canonicalize_name(name): version for name, version in engine.host.items()}
    unmet_by_host: Unmet = (lambda one: _asked(one, engine)) if on_host else (
        lambda one: _listed(one, listed, engine))  # fmt: skip
    counts, unmet = {"carried": 0, "by_host": 0, "by_choice": 0}, []
    for requirement, asker in _all(tree_has, engine):
        name = canonicalize_name(requirement.name)
        if name in tree_has:
            counts["carried"] += 1
            version = tree_has[name].version
            if not requirement.specifier.contains(version, prereleases=True):
                unmet.append(f"{asker} asks for {requirement}, carried is {version}")
        elif name in left_out:
            counts["by_choice"] += 1
        else:
            counts["by_host"] += 1
            if problem := unmet_by_host(requirement):
                unmet.append(f"{asker} asks for {requirement}, {problem}")
    return Needs(**counts, unmet=sorted(set(unmet)))


def name_of(found: Distribution) -> str:
    """The name in the one spelling that is compared."""
    return canonicalize_name(found.metadata["Name"])


def _all(tree_has: Mapping[str, Distribution], engine: EngineSet) -> list[tuple[Requirement, str]]:
    """Every requirement that holds, of vLLM and of all that is carried, with who asks for it."""
    environment = {"python_version": engine.python, "python_full_version": f"{engine.python}.3",
                   "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
                   "platform_machine": "x86_64", "implementation_name": "cpython",
                   "platform_python_implementation": "CPython"}  # fmt: skip
    found: list[tuple[Requirement, str]] = []
    seen: set[tuple[str, str]] = set()
    waiting = [("vllm", ""), *((name, "") for name in tree_has)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen or name not in tree_has:
            continue
        seen.add((name, extra))
        for text in tree_has[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate(
                {**environment, "extra": extra}
            ):
                continue
            if extra and not (requirement.marker and "extra" in str(requirement.marker)):
                continue
            found.append((requirement, name))
            waiting += [(canonicalize_name(requirement.name), more) for more in requirement.extras]
    return found


def _listed(
    requirement: Requirement, listed: Mapping[NormalizedName, str], engine: EngineSet
) -> str:
    name = canonicalize_name(requirement.name)
    if name not in listed:
        return "and neither the folder, nor the host, nor the list of what is left out has it"
    return _compared(requirement, listed[name], engine)


def _asked(requirement: Requirement, engine: EngineSet) -> str:
    try:
        return _compared(requirement, distribution(requirement.name).version, engine)
    except PackageNotFoundError:
        return "and this Python has none"


def _compared(requirement: Requirement, version: str, engine: EngineSet) -> str:
    spelled = f"{requirement.name}{requirement.specifier}"
    if not version or spelled in engine.met_otherwise:
        return ""
    met = requirement.specifier.contains(version, prereleases=True)
    return "" if met else f"the host has {version}"
