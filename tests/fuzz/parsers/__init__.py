"""The list of fuzzed parsers. A new parser belongs into the module of its area."""

from __future__ import annotations

from tests.fuzz.parser import Parser
from tests.fuzz.parsers import (
    aws,
    bench,
    catalog,
    checkpoints,
    commands,
    container,
    engines,
    metrics,
    project,
    records,
    sandbox,
    warm,
    weights,
)

MODULES = (
    container, warm, checkpoints, catalog, commands, records, engines, aws, weights, sandbox,
    bench, metrics, project,
)  # fmt: skip

PARSERS: dict[str, Parser] = {one.name: one for module in MODULES for one in module.PARSERS}
