"""A vLLM version without an image.

SageMaker fails to pull an image that AWS never published.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case, nearest_version
from peagle.findings import Finding, error
from peagle.vllm import versions

CODE = "runtime-unknown"
ABOUT = "hardware"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error that names the nearest version with an image."""
    known = [versions.normalise(runtime.vllm) for runtime in case.runtimes.runtimes]
    version = case.runtime.vllm
    if version in known or case.image is not None:
        return
    near = nearest_version(version, known)
    message = f"the catalogue has no image with vLLM {version}"
    yield error(CODE, "vllm", message, f"use --vllm {near}, or your own image with --image")
