"""Writes a changed table of runtimes back into ``runtimes.yaml``; see ``rewriting``."""

from __future__ import annotations

import re
import textwrap

from toolkit.catalog.rewriting import with_head
from toolkit.catalog.tables import Runtime, RuntimeTable
from toolkit.catalog.versions import parse

_BLOCK = re.compile(r'^  - vllm: "?(?P<vllm>[\d.]+)"?\n(?:    .*\n)+', re.MULTILINE)
_REGIONS = re.compile(
    r"^    regions:(?: &(?P<name>\w+))?(?: \*(?P<alias>\w+))?[^\n]*\n(?:      .*\n)*", re.MULTILINE
)
_ACCOUNT = re.compile(r'^  (?P<region>[a-z0-9\-]+): "?\d+"?\n', re.MULTILINE)
_WIDTH = 96
"""Widest line of a list of regions in the bundled file."""


def rewritten_runtimes(text: str, before: RuntimeTable, after: RuntimeTable) -> str:
    """The text of ``runtimes.yaml``, which says ``before``, so that it says ``after``."""
    text = text if text.endswith("\n") else f"{text}\n"
    text = _with_accounts(text, before, after)
    old = {runtime.vllm: runtime for runtime in before.runtimes}
    for runtime in after.runtimes:
        if runtime.vllm not in old:
            text = _inserted(text, runtime)
        elif runtime != old[runtime.vllm]:
            text = _changed(text, old[runtime.vllm], runtime)
        before_digest = old[runtime.vllm].digest if runtime.vllm in old else None
        if runtime.digest != before_digest:
            text = _with_digest(text, runtime)
    text = _with_regions(text, old, after)
    if before.checked != after.checked or before.source != after.source:
        text = with_head(text, after.checked, after.source)
    return text


def _with_accounts(text: str, before: RuntimeTable, after: RuntimeTable) -> str:
    for region, account in after.accounts.items():
        line = f'  {region}: "{account}"\n'
        if region not in before.accounts:
            earlier = [f for f in _ACCOUNT.finditer(text) if f["region"] < region]
            place = max(earlier, key=lambda f: f["region"], default=None) or next(
                _ACCOUNT.finditer(text)
            )
            at = place.end() if earlier else place.start()
            text = text[:at] + line + text[at:]
        elif before.accounts[region] != account:
            text = re.sub(rf'^  {region}: "?\d+"?\n', line, text, count=1, flags=re.MULTILINE)
    return text


def _inserted(text: str, runtime: Runtime) -> str:
    """A new block behind that of the next lower version; its regions are written later."""
    version = parse(runtime.vllm)
    blocks = list(_BLOCK.finditer(text))
    lower = [found for found in blocks if parse(found["vllm"]) < version]
    at = lower[-1].end() if lower else blocks[0].start()
    ami = re.search(rf"ami: &(\w+) {re.escape(runtime.ami)}\n", text[:at])
    block = (
        f'  - vllm: "{runtime.vllm}"\n'
        f"    repository: {runtime.repository}\n"
        f"    tag: {runtime.tag}\n"
        f'    cuda: "{runtime.cuda}"\n'
        f"    ami: {f'*{ami[1]}' if ami else runtime.ami}\n"
    )
    return text[:at] + block + text[at:]


def _changed(text: str, old: Runtime, new: Runtime) -> str:
    """The block with what changed of repository, tag, CUDA and AMI."""
    for found in _BLOCK.finditer(text):
        if found["vllm"] == new.vllm:
            block = found[0]
            for key in ("repository", "tag", "cuda", "ami"):
                if getattr(old, key) != getattr(new, key):
                    value = getattr(new, key)
                    shown = f'"{value}"' if key == "cuda" else value
                    block = re.sub(
                        rf"^    {key}: (&\w+ )?.*$",
                        lambda line, key=key, shown=shown: f"    {key}: {line[1] or ''}{shown}",  # type: ignore[misc]
                        block,
                        count=1,
                        flags=re.MULTILINE,
                    )
            return text[: found.start()] + block + text[found.end() :]
    return text


def _with_digest(text: str, runtime: Runtime) -> str:
    """The block with that digest, below its tag, or without any."""
    found = next(found for found in _BLOCK.finditer(text) if found["vllm"] == runtime.vllm)
    block = re.sub(r"^    digest: .*\n", "", found[0], flags=re.MULTILINE)
    if runtime.digest:
        said = f"    digest: {runtime.digest}\n"
        block = re.sub(r"^    tag: .*\n", lambda line: line[0] + said, block, flags=re.MULTILINE)
    return text[: found.start()] + block + text[found.end() :]


def _with_regions(text: str, old: dict[str, Runtime], after: RuntimeTable) -> str:
    """Every list of regions: as it was where it was right, by name where it stands above already,
    else written out, with a name when it is needed again."""
    new = {runtime.vllm: runtime.regions for runtime in after.runtimes}
    needed = list(new.values())
    names: dict[tuple[str, ...], str] = {}
    pieces, last = [], 0
    for block in _BLOCK.finditer(text):
        regions = new.get(block["vllm"], ())
        was = old[block["vllm"]].regions if block["vllm"] in old else ()
        body = _block_with_regions(block[0], regions, was, names, needed)
        pieces += [text[last : block.start()], body]
        last = block.end()
    return "".join([*pieces, text[last:]])


def _block_with_regions(
    block: str,
    regions: tuple[str, ...],
    was: tuple[str, ...],
    names: dict[tuple[str, ...], str],
    needed: list[tuple[str, ...]],
) -> str:
    found = _REGIONS.search(block)
    if not regions:
        return block
    if found and regions == was and (not found["alias"] or names.get(regions) == found["alias"]):
        if found["name"]:
            names[regions] = found["name"]
        return block
    if regions in names:
        said = f"    regions: *{names[regions]}\n"
    else:
        name = _new_name(names) if needed.count(regions) > 1 else ""
        if name:
            names[regions] = name
        said = _list(regions, name)
    if found:
        return block[: found.start()] + said + block[found.end() :]
    ending = re.search(r"^    cpu", block, re.MULTILINE)
    at = ending.start() if ending else len(block)
    return block[:at] + said + block[at:]


def _new_name(names: dict[tuple[str, ...], str]) -> str:
    number = 1
    while f"regions_{number}" in names.values():
        number += 1
    return f"regions_{number}"


def _list(regions: tuple[str, ...], name: str) -> str:
    words = textwrap.fill(
        ", ".join(regions), _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return f"    regions:{f' &{name}' if name else ''}\n      [\n{words}\n      ]\n"
