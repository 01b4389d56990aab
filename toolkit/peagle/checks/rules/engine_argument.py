"""An argument that vLLM does not have.

vLLM refuses an unknown argument at start, when the instance already costs money.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, version_finding
from peagle.errors import nearest
from peagle.findings import Finding

CODE = "engine-argument"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for each unknown name, with the nearest known names as its fix."""
    for entry in entries(case, CODE):
        for name in sorted(case.settings):
            if plain(name) not in entry.names:
                fix = nearest(plain(name), entry.names) or entry.fix
                yield version_finding(entry.model_copy(update={"fix": fix}), "vllm", f"--{name}")


def plain(name: str) -> str:
    """The name without ``no-`` and without a key: ``compilation-config.mode`` sets a key of
    ``compilation-config``."""
    return name.partition(".")[0].removeprefix("no-")
