"""The sizes of requests that ``peagle bench`` measures and ``peagle verdict`` compares, by name."""

from __future__ import annotations

from collections.abc import Mapping

from peagle.speed.models import Workload

WORKLOADS: Mapping[str, Workload] = {
    "short-prompt": Workload(128, 400),
    "long-prompt": Workload(2048, 256),
    "long-answer": Workload(128, 1024),
}
"""As in the measurements of the catalogue: ``benchmarks/gpu/load.py``, which runs on a GPU host
without the toolkit, has the same."""
