"""An instance type that GPU endpoints cannot use.

SageMaker refuses it, but only after weights are uploaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.find import find_instance
from peagle.errors import NotFound
from peagle.findings import Finding, error

CODE = "instance-unknown"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error that names the types of its family, else the nearest ones."""
    if case.instance_type is None or case.instance is not None:
        return
    try:
        find_instance(case.instances, case.instance_type)
    except NotFound as missing:
        fix = missing.fix or "leave --instance-type out to use the cheapest type that fits"
        yield error(CODE, "instance_type", missing.message, fix)
