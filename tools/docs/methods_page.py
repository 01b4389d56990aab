"""``docs/methods.md``: the methods of speculation in ``model_catalog/methods.yaml``."""

from __future__ import annotations

import json

from peagle.catalog.loading import load_table
from peagle.catalog.tables import Method, MethodTable
from peagle.data import data_folder
from peagle.vllm.versions import find_facts
from tools.docs.markdown import escaped, table

NOTE = "<!-- Written by `make docs` from model_catalog/methods.yaml: change the texts there. -->"

_HEADING = ("method", "what drafts", "vLLM", "this toolkit", "use instead")


def methods_page() -> str:
    """The chapter."""
    versions = _versions()
    rows = [
        (
            f"[{escaped(method.name)}]({method.source})",
            escaped(method.drafts),
            support(method, versions),
            escaped(method.here),
            escaped(method.instead) or "-",
        )
        for method in load_table(MethodTable).methods
    ]
    introduction = (
        "What is published, what vLLM serves of it, and what this toolkit does with it. The column "
        "vLLM has the `method` of `--speculative-config` and the oldest version known to have it, "
        f"read in the wheels of {versions[0]} to {versions[-1]}. Whatever drafts, vLLM verifies "
        "every token, so the answers are the target's. How to choose for a model without a head: "
        "[no-head.md](no-head.md)."
    )
    return f"# Methods of speculation\n\n{NOTE}\n\n{introduction}\n\n{table(_HEADING, rows)}\n"


def support(method: Method, versions: list[str]) -> str:
    """The versions of vLLM that have the method, of those that were read; ``no`` if none has."""
    if not method.vllm:
        return "no"
    name = method.vllm[0]
    having = [vllm for vllm in versions if name in find_facts(vllm).speculative_methods]
    parallel = " with `parallel_drafting`" if method.parallel_drafting else ""
    last = "" if having[-1] == versions[-1] else f" to {having[-1]}"
    first = method.since or f"{having[0]} or earlier"
    return f"`{name}`{parallel}, from {first}{last}"


def _versions() -> list[str]:
    facts = json.loads((data_folder("model_catalog") / "vllm.json").read_text(encoding="utf-8"))
    return list(facts["versions"])
