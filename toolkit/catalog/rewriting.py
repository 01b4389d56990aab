"""Writes changed tables back into their YAML, entry by entry: comments and all else stay.

Only what changed is written anew, in the style of the bundled files. Whoever writes a file reads it
back and compares, because a file in another style may not be understood here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date

from toolkit.catalog.tables import Instance, InstanceTable, Price

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
