"""What the container reads: variables, folders of models, vLLM's log and counters."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from peagle_serve.checkpoint import (
    DamagedFile,
    Tensor,
    check_folder,
    parse_header,
    parse_index,
    read_json,
    weight_files,
)
from peagle_serve.checks import check_pair
from peagle_serve.command import command, decoded
from peagle_serve.contract import MODEL, SPECULATION, InvalidEnvironment, read_settings
from peagle_serve.crash import parse_crash
from peagle_serve.environment import KNOWN, check_arguments, make_tokens
from peagle_serve.heads import Head, parse_layer
from peagle_serve.logs import Log, Redactor
from peagle_serve.middleware import sum_counters
from peagle_serve.weights import check_mounted_weights
from tests.fuzz.inputs import binary, documents, encoded, json_bytes, texts
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.examples import (
    CONFIG_OF_HEAD,
    CONFIG_OF_SPECULATORS,
    CONFIG_OF_TARGET,
    ENVIRONMENT,
    HEADER,
    INDEX,
    LINES,
    MOUNTED,
    NAMES,
    OFFSETS,
    PAGE,
    SOURCE,
    WEIGHTS,
    header_file,
)
from tests.fuzz.parsers.files import folder, written

REFUSED = (InvalidEnvironment,)
SERVED = {
    **ENVIRONMENT,
    MODEL: "openai/gpt-oss-20b",
    "SM_VLLM_API_KEY": "one-secret",
    SPECULATION: '{"method": "ngram", "num_speculative_tokens": 4}',
}
"""Of models that are no folders."""


def _header(content: bytes) -> None:
    parse_header(content, len(content), "model.safetensors")
    parse_header(content, len(content), "model.safetensors")


HEADERS = st.builds(
    header_file, json_bytes(HEADER, more=OFFSETS), st.sampled_from((38, 0, 37, 39, 24))
) | binary(WEIGHTS)


def _folder(files: Mapping[str, bytes]) -> None:
    place = folder() / "model"
    place.mkdir(exist_ok=True)
    for left in place.iterdir():
        left.unlink()
    for name, content in files.items():
        (place / name).write_bytes(content)
    check_folder(MODEL, str(place), True)


def _pair(case: tuple[bytes, bytes, bytes]) -> None:
    target, head, weights = case
    written("pair/target/config.json", target)
    written("pair/drafter/config.json", head)
    written("pair/drafter/model.safetensors", weights)
    root = folder() / "pair"
    speculation = {"method": "eagle3", "model": str(root / "drafter"), "parallel_drafting": True}
    check_pair({MODEL: str(root / "target"), SPECULATION: json.dumps(speculation)})
    speculation["parallel_drafting"] = False
    check_pair({MODEL: str(root / "target"), SPECULATION: json.dumps(speculation)})


def _head(case: tuple[dict[str, Any], dict[str, list[int]]]) -> None:
    config, shapes = case
    head = Head(config, {name: Tensor("BF16", tuple(shape), 2) for name, shape in shapes.items()})
    head.may_be_head()
    head.is_parallel()
    head.placeholder()
    head.layer_tensors()
    head.holding("embed_tokens", "mask")
    head.tensor("fc.weight")
    for name in head.tensors:
        parse_layer(name)


def _log(case: tuple[dict[str, str], list[str]]) -> None:
    environment, lines = case
    log = Log(Redactor(environment), _null())
    for stage in ("starting", "serving"):
        log.stage = stage
        for line in lines:
            log.engine(line)
        log.info("starting vLLM", event="start", argv=list(environment.values()))


def _defined(name: str) -> str:
    return f"    {name.removeprefix('SM_VLLM_').lower()}: int = 0"


def _mounted(manifest: bytes) -> None:
    root = written("ml/model/peagle-weights.json", manifest).parents[1]
    written("ml/model/target/config.json", b"{}")
    environment = {"PEAGLE_ML_ROOT": str(root), MODEL: str(root / "model" / "target")}
    environment["PEAGLE_WEIGHTS_SHA256"] = hashlib.sha256(manifest).hexdigest()
    check_mounted_weights(environment)


def _null() -> int:
    global _descriptor
    if _descriptor is None:
        _descriptor = os.open(os.devnull, os.O_WRONLY)
    return _descriptor


_descriptor: int | None = None
TENSORS = st.dictionaries(
    texts(*HEADER, "layers.1.mlp.up_proj.weight", "midlayer.x", "embed_tokens.weight", most=1),
    st.lists(st.integers(0, 2**40), max_size=4), max_size=6,
)  # fmt: skip
PARTS = {
    "model-00001-of-00002.safetensors": header_file(
        json.dumps({"fc.weight": HEADER["fc.weight"]}).encode(), 24
    ),
    "model-00002-of-00002.safetensors": header_file(
        b'{"norm.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}', 0
    ),
}
MODELS: tuple[dict[str, bytes], ...] = (
    {"config.json": b"{}", "model.safetensors": WEIGHTS},
    {"config.json": b"{}", "model.safetensors.index.json": json.dumps(INDEX).encode(), **PARTS},
)
MODEL_FILES = st.builds(
    lambda model, changes: model | changes,
    st.sampled_from(MODELS),
    st.dictionaries(
        st.sampled_from(NAMES), json_bytes(CONFIG_OF_TARGET, INDEX) | HEADERS, max_size=2
    ),
)
NARROW = {**CONFIG_OF_TARGET, "hidden_size": 2}, {**CONFIG_OF_HEAD, "hidden_size": 2}
"""A target and a head whose ``fc`` is as wide as in ``HEADER``."""
PARSERS = (
    Parser("safetensors-header", _header, [WEIGHTS], DamagedFile, inputs=HEADERS),
    Parser(
        "safetensors-index",
        lambda content: parse_index(content, "index.json"),
        [encoded(INDEX)],
        DamagedFile,
    ),
    Parser(
        "safetensors-names", lambda names: weight_files(names, None), [list(NAMES)], DamagedFile
    ),
    Parser("container-arguments", command, [SERVED, ENVIRONMENT], REFUSED),
    Parser(
        "container-bytes",
        decoded,
        [{b"SM_VLLM_A": b"b"}],
        REFUSED,
        inputs=st.dictionaries(binary(b"SM_VLLM_A", b"HOME"), binary(b"value"), max_size=4),
    ),
    Parser("container-settings", read_settings, [ENVIRONMENT], REFUSED),
    Parser(
        "container-names",
        lambda case: check_arguments(*case),
        [
            ({"SM_VLLM_MAX_MODEL_LEN": "1"}, SOURCE),
            (dict.fromkeys((*KNOWN, "SM_VLLM_X"), ""), "\n".join(map(_defined, KNOWN))),
        ],
        REFUSED,
    ),
    Parser(
        "json-parts",
        lambda text: make_tokens("--x", text),
        ['{"a": {"b": 1}}', '[1, "b"]', '{"a": 1} {}'],
    ),
    Parser(
        "container-json",
        lambda content: read_json("X", written("one.json", content)),
        [encoded(CONFIG_OF_HEAD)],
        REFUSED,
    ),
    Parser("container-folder", _folder, MODELS, REFUSED, inputs=MODEL_FILES),
    Parser("container-pair", _pair, [(encoded(NARROW[0]), encoded(NARROW[1]), WEIGHTS)], REFUSED),
    Parser("container-mounted", _mounted, [encoded(MOUNTED)], REFUSED),
    Parser(
        "head-config",
        _head,
        [(CONFIG_OF_SPECULATORS, {"layers.0.q": [1], "fc.weight": [2, 3]})],
        inputs=st.tuples(
            documents(CONFIG_OF_HEAD, CONFIG_OF_SPECULATORS).filter(
                lambda document: isinstance(document, dict)
            ),
            TENSORS,
        ),
    ),
    Parser("container-log", _log, [(ENVIRONMENT, list(LINES))]),
    Parser(
        "crash",
        lambda lines: parse_crash(lines),
        [
            list(LINES),
            ["ValueError: attention heads (40) must be divisible by tensor parallel size (3)"],
        ],
    ),
    Parser("prometheus", sum_counters, [PAGE]),
)
