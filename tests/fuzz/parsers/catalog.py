"""The catalogue: its YAML files, evidence, and the rewriting of its tables."""

import json
from contextlib import suppress
from typing import Any

import yaml
from hypothesis import strategies as st

from peagle.catalog.documents import BadFile, read_document
from peagle.catalog.evidence import read_run
from peagle.catalog.loading import check_catalog_file
from peagle.data import data_folder
from tests.fuzz.inputs import documents, encoded, texts
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.files import written
from tests.unit.catalog.catalog_files import GOOD

_BUNDLED = data_folder("model_catalog")


def _first(name: str, *keys: str) -> Any:
    """A bundled table with the first two entries of its lists."""
    document = yaml.safe_load((_BUNDLED / name).read_text(encoding="utf-8"))
    return {key: value[:2] if isinstance(value, list) else value for key, value in document.items()}


TABLES = {
    name: _first(name)
    for name in (
        "instances.yaml",
        "runtimes.yaml",
        "storage.yaml",
        "version_rules.yaml",
        "methods.yaml",
        "speed_model.yaml",
        "training.yaml",
    )
}
TARGET = yaml.safe_load(GOOD)
ALIASES = (
    "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n"
    "c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\n"
    "e: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\n"
    "g: &g [*f, *f, *f, *f, *f, *f, *f, *f]\nh: &h [*g, *g, *g, *g, *g, *g, *g, *g]\n"
)
RECURSIVE = "a: &a [*a]\n"
MORE = (
    ALIASES, RECURSIVE, "&a ", "*a", "<<: *a\n", "? [a]\n: b\n", "!!python/name:os.system x",
    "%YAML 1.2\n---\n", "a:\n" * 3000, "- " * 3000, "[" * 3000, "9" * 6000, "0" * 6000 + "x",
)  # fmt: skip
EVIDENCE = {
    "date": "2026-11-21", "engine": {"name": "vllm", "version": "0.28.0"}, "pair": "acme/chat-7b",
    "device": "NVIDIA H200", "script": "measurements/x.py", "method": "m", "hardware": "1 x H200",
    "results": [{"drafter": "p-eagle", "k": 5, "acceptance_length": 2.5, "prompts": 80,
                 "benchmark": "MT-Bench"}],
}  # fmt: skip
_SPEEDS = next(_BUNDLED.glob("evidence/speed-*.json"))


def _speeds() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_SPEEDS.read_text(encoding="utf-8"))
    return {key: value[:2] if isinstance(value, list) else value for key, value in document.items()}


def dumped(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _file(case: tuple[str, str]) -> None:
    name, text = case
    check_catalog_file(written(f"catalog/{name}", text))


def _document(content: bytes) -> None:
    try:
        document = read_document(written("catalog/acme/chat-7b.yaml", content), "chat-7b.yaml")
    except BadFile:
        return
    document.line(("architecture", "layers"))
    assert document.data is not document


def _evidence(content: bytes) -> None:
    path = written("catalog/evidence/one.json", content)
    with suppress(BadFile):
        read_run(path)


YAML_TEXTS = texts(GOOD, RECURSIVE, ALIASES, more=MORE)
TARGETS = documents(TARGET).map(dumped) | YAML_TEXTS
FILES = st.one_of(
    st.tuples(st.just("acme/chat-7b.yaml"), TARGETS),
    *(
        st.tuples(st.just(name), documents(table).map(dumped) | texts(dumped(table), more=MORE))
        for name, table in TABLES.items()
    ),
)
PARSERS = (
    Parser(
        "catalog-file",
        _file,
        [
            ("acme/chat-7b.yaml", GOOD),
            ("acme/chat-7b.yaml", GOOD.replace("eagle3", "eagle4")),
            *((name, dumped(table)) for name, table in TABLES.items()),
        ],
        inputs=FILES,
    ),
    Parser("catalog-document", _document, [text.encode() for text in (GOOD, *MORE)]),
    Parser(
        "catalog-evidence",
        _evidence,
        [
            encoded(EVIDENCE),
            json.dumps(_speeds()).encode(),
            json.dumps(EVIDENCE | {"results": [{"k": "x"}]}).encode(),
        ],
    ),
)
