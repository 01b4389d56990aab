"""Writes changed tables back into their YAML, entry by entry: comments and all else stay.

Only what changed is written anew, in the style of the bundled files. Whoever writes a file reads it
back and compares, because a file in another style may not be understood here.

Writes a changed table of runtimes back into ``runtimes.yaml``; see ``rewriting``.

Puts rewritten tables in their place: all of them whole, or none.
"""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from peagle.catalog.documents import shown
from peagle.catalog.loading import examine, table_file
from peagle.catalog.tables import Instance, InstanceTable, Price, Runtime, RuntimeTable
from peagle.data import data_folder
from peagle.errors import UserError
from peagle.store import replacing
from peagle.vllm.versions import parse

_ENTRY = re.compile(r"^  - (?=\{type: (?P<type>[^\s,}]+))", re.MULTILINE)
_DEFINED = re.compile(r",\s*source: &(?P<name>\w+) (?P<value>[^{}\[\]\n]+?)(?=\s*\})")
_ANCHOR = "api"
_WIDTH = 100
"""Longest line that is written, where it can be broken."""


def with_head(text: str, checked: date, source: str) -> str:
    """The text of a table with another ``checked`` and ``source`` at its head."""
    text = re.sub(r"^checked: .*$", f"checked: {checked.isoformat()}", text, count=1, flags=re.M)
    return re.sub(r"^source: .*$", lambda _: f"source: {source}", text, count=1, flags=re.M)


def rewritten_instances(text: str, before: InstanceTable, after: InstanceTable) -> str:
    """The text of ``instances.yaml``, which says ``before``, so that it says ``after``."""
    names = {found["value"]: found["name"] for found in _DEFINED.finditer(text)}
    plain = _DEFINED.sub(lambda found: f", source: *{found['name']}", text)
    aliases = _aliases(names, after)
    old = {instance.type: instance for instance in before.instances}
    new = {instance.type: instance for instance in after.instances}
    pieces, last = [], 0
    for kind, start, end in _entries(plain):
        if kind in new and new[kind] != old.get(kind):
            pieces += [plain[last:start], instance_text(new[kind], aliases)]
            last = end
    plain = "".join([*pieces, plain[last:]])
    for instance in after.instances:
        if instance.type not in old:
            plain = _inserted(plain, instance, aliases)
    if before.checked != after.checked or before.source != after.source:
        plain = with_head(plain, after.checked, after.source)
    return _anchored(plain, {name: value for value, name in aliases.items()})


def instance_text(instance: Instance, aliases: Mapping[str, str]) -> str:
    """One entry, as the bundled file writes it; ``aliases`` leads from a source to its anchor."""
    one = instance
    lines = [
        f"{{type: {one.type}, gpu: {one.gpu}, gpu_count: {one.gpu_count}, "
        f"gpu_memory_mib: {one.gpu_memory_mib}",
        f"gpu_architecture: {one.gpu_architecture}, vcpus: {one.vcpus}, "
        f"memory_gib: {one.memory_gib}, nvme_gb: {one.nvme_gb}"
        + (f", quota_code: {one.quota_code}" if one.quota_code else ""),
    ]
    if one.quota_default is not None:
        lines.append(f"quota_default: {one.quota_default:g}")
    if one.prices:
        prices = ",\n              ".join(_price_text(price, aliases) for price in one.prices)
        lines.append(f"prices: [{prices}]")
    return ",\n     ".join(lines) + "}"


def _price_text(price: Price, aliases: Mapping[str, str]) -> str:
    source = f"*{aliases[price.source]}" if price.source in aliases else price.source
    return (
        f"{{usd_per_hour: {price.usd_per_hour!r}, region: {price.region}, "
        f"date: {price.date.isoformat()}, source: {source}}}"
    )


def _aliases(names: Mapping[str, str], after: InstanceTable) -> dict[str, str]:
    """Source -> anchor, also for sources that come in with ``after`` and are used often."""
    sources = [price.source for instance in after.instances for price in instance.prices]
    aliases = dict(names)
    for source in dict.fromkeys(sources):
        if source not in aliases and sources.count(source) > 1:
            number = len([name for name in aliases.values() if name.startswith(_ANCHOR)])
            aliases[source] = f"{_ANCHOR}{number or ''}"
    return aliases


def _entries(text: str) -> Iterator[tuple[str, int, int]]:
    """Type, begin and end of every entry ``{type: ...}``."""
    for found in _ENTRY.finditer(text):
        depth = 0
        for at in range(found.end(), len(text)):
            depth += (text[at] in "{[") - (text[at] in "}]")
            if depth == 0:
                yield found["type"], found.end(), at + 1
                break


def _inserted(text: str, instance: Instance, aliases: Mapping[str, str]) -> str:
    """The text with a new entry behind the last of its family, else at the end."""
    entry = f"\n  - {instance_text(instance, aliases)}"
    family = instance.type.split(".")[1]
    ends = [end for kind, _, end in _entries(text) if kind.split(".")[1] == family]
    if ends:
        return text[: ends[-1]] + entry + text[ends[-1] :]
    return f"{text.rstrip()}\n  # {instance.gpu}{entry}\n"


def _anchored(text: str, values: Mapping[str, str]) -> str:
    """The first alias of each name becomes the anchor that says its value."""
    for name, value in values.items():
        found = re.search(rf", source: \*{name}\b", text)
        if found:
            defined = f" source: &{name} {value}"
            line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
            ending = text[found.end() :].partition("\n")[0]
            if len(line) + len(defined) + len(ending) >= _WIDTH:
                defined = f"\n{' ' * 14}{defined}"
            text = f"{text[: found.start()]},{defined}{text[found.end() :]}"
    return text


_BLOCK = re.compile(r'^  - vllm: "?(?P<vllm>[\d.]+)"?\n(?:    .*\n)+', re.MULTILINE)
_REGIONS = re.compile(
    r"^    regions:(?: &(?P<name>\w+))?(?: \*(?P<alias>\w+))?[^\n]*\n(?:      .*\n)*", re.MULTILINE
)
_ACCOUNT = re.compile(r'^  (?P<region>[a-z0-9\-]+): "?\d+"?\n', re.MULTILINE)
_WIDTH_REWRITING_RUNTIMES = 96
"""Widest line of a list of regions in the bundled file."""


def rewritten_runtimes(text: str, before: RuntimeTable, after: RuntimeTable) -> str:
    """The text of ``runtimes.yaml``, which says ``before``, so that it says ``after``."""
    text = text if text.endswith("\n") else f"{text}\n"
    text = _with_accounts(text, before, after)
    old = {runtime.vllm: runtime for runtime in before.runtimes}
    for runtime in after.runtimes:
        if runtime.vllm not in old:
            text = _inserted_rewriting_runtimes(text, runtime)
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


def _inserted_rewriting_runtimes(text: str, runtime: Runtime) -> str:
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
        ", ".join(regions), _WIDTH_REWRITING_RUNTIMES,
        initial_indent=" " * 8, subsequent_indent=" " * 8,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return f"    regions:{f' &{name}' if name else ''}\n      [\n{words}\n      ]\n"


@dataclass(frozen=True)
class Tables:
    """The two tables that a refresh writes."""

    runtimes: RuntimeTable
    instances: InstanceTable


def folder_for_tables(chosen: Path | None) -> Path:
    """``chosen``, else the bundled catalogue."""
    return chosen or data_folder("model_catalog")


def refuse_unwritable(folder: Path) -> None:
    """Raises UserError where tables cannot be written, before anybody is asked for them."""
    try:
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise _cannot_be_made(folder, error) from error
    if not existing.is_dir():
        raise UserError(f"{existing} is not a folder", "name a folder with --to")
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"the catalogue in {shown(folder)} cannot be written",
            "write to a folder of your own with --to DIR, and use it with `peagle --catalog DIR`",
        )


def _cannot_be_made(folder: Path, error: OSError) -> UserError:
    message = f"the catalogue in {shown(folder)} cannot be written: {error.strerror}"
    return UserError(message, "name another folder with --to DIR")


def new_texts(folder: Path, before: Tables, after: Tables) -> dict[str, str]:
    """The files that change, by name, as they should be.

    ``before`` is what was loaded with ``folder`` as the user's own. Raises UserError when a file
    is written in a way in which it cannot be changed in place.
    """
    texts: dict[str, str] = {}
    if before.runtimes != after.runtimes:
        text = table_file("runtimes.yaml", folder).read_text(encoding="utf-8")
        texts["runtimes.yaml"] = rewritten_runtimes(text, before.runtimes, after.runtimes)
        _check("runtimes.yaml", texts["runtimes.yaml"], after.runtimes, folder)
    if before.instances != after.instances:
        text = table_file("instances.yaml", folder).read_text(encoding="utf-8")
        texts["instances.yaml"] = rewritten_instances(text, before.instances, after.instances)
        _check("instances.yaml", texts["instances.yaml"], after.instances, folder)
    return texts


def _check(name: str, text: str, wanted: RuntimeTable | InstanceTable, folder: Path) -> None:
    """What will be written must be read as what was meant."""
    with tempfile.TemporaryDirectory() as place:
        draft = Path(place) / name
        draft.write_text(text, encoding="utf-8")
        found, problems = examine(draft, type(wanted))
    if problems or found is None or _sorted(found) != _sorted(wanted):
        raise UserError(
            f"{shown(folder / name)} is not written in the style of the bundled file, so it "
            "cannot be changed in place",
            "write to another folder with --to DIR",
        )


def _sorted(table: RuntimeTable | InstanceTable) -> RuntimeTable | InstanceTable:
    """A new type stands in the file beside its family, so the order of entries may differ."""
    if isinstance(table, RuntimeTable):
        return table
    ordered = tuple(sorted(table.instances, key=lambda instance: instance.type))
    return table.model_copy(update={"instances": ordered})


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files so that each is seen old or new, never half; gives their paths.

    Raises UserError where the folder or a file in it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _written(folder, texts)
    except OSError as error:
        raise _cannot_be_made(folder, error) from error


def _written(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """All of them are complete on disk before the first one replaces an old file."""
    with ExitStack() as files:
        for name, text in texts.items():
            temporary = files.enter_context(replacing(folder / name))
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
