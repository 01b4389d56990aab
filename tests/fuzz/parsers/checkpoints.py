"""Checkpoints as the toolkit reads them: config.json, headers, indexes, the Hub's answers."""

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import requests
from hypothesis import strategies as st

from peagle.catalog.writing import entry_text
from peagle.checkpoints.entries import drafter_from_checkpoint, target_from_checkpoint
from peagle.checkpoints.files import parse_config
from peagle.checkpoints.heads import read_attention, read_head, weight_bytes
from peagle.checkpoints.hub import Hub, HubSource, resolve_revision
from peagle.checkpoints.models import Tokenizer
from peagle.checkpoints.reading import read_checkpoint
from peagle.checks import check
from peagle.checks.rules.target import parse_layers
from peagle.errors import CheckpointError, PeagleError
from peagle.weights.own_target import new_entry
from peagle_serve.heads import is_head
from tests.fuzz.inputs import encoded, json_bytes
from tests.fuzz.parser import Parser, quietly
from tests.fuzz.parsers.commands import ERRORS, run_command
from tests.fuzz.parsers.container import HEADERS, MODELS
from tests.fuzz.parsers.examples import CONFIG_OF_HEAD, CONFIGS, INDEX, NAMES, WEIGHTS
from tests.fuzz.parsers.files import written
from tests.unit.checkpoints.files import Memory
from tests.unit.checkpoints.public_targets import DEEPSEEK_V3
from tests.unit.checks.cases import GEOMETRY, catalog_case, with_options

TOKENIZER = {
    "added_tokens": [{"id": 511, "content": "<mask>", "special": True}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]},
}
TOKENIZER_CONFIG = {
    "eos_token": "</s>", "bos_token": {"content": "<s>"}, "chat_template": "{{ x }}",
    "added_tokens_decoder": {"511": {"content": "<mask>"}}, "tokenizer_class": "T",
}  # fmt: skip
COMMIT = "a" * 40
TREE = [
    {"type": "file", "path": "config.json", "size": 20, "oid": "b" * 40},
    {"type": "file", "path": "model.safetensors", "size": 90, "lfs": {"oid": "c" * 64, "size": 90}},
    {"type": "directory", "path": "original", "size": 0, "oid": "d" * 40},
]
REVISION = {"sha": COMMIT, "gated": False, "private": False, "siblings": []}


def _config(content: bytes) -> None:
    """A config.json as a target, as a drafter, and in all checks of a pair."""
    read = read_checkpoint(Memory({"config.json": content}))
    for describe in (target_from_checkpoint, drafter_from_checkpoint):
        try:
            describe(read)
        except PeagleError:
            continue
    head = read_head(read.config)
    read_attention(head)
    weight_bytes(head)


def _new_entry(case: tuple[bytes, bytes]) -> None:
    """A target and a head as a new file of the catalogue, which the catalogue accepts."""
    model, head = (read_checkpoint(Memory({"config.json": config})) for config in case)
    file = Path("acme/chat-7b.yaml")
    entry = new_entry(model, head if is_head(head.config) else None, file, "0.28.0")
    entry_text(entry.target, entry.unknown, file)


def _checks(case: tuple[bytes, bytes]) -> None:
    target, head = (read_checkpoint(Memory({"config.json": config})) for config in case)
    bundled = catalog_case("gpt-oss-20b")
    check(with_options(bundled, target_checkpoint=target, drafter_checkpoint=head))


def _checkpoint(files: Mapping[str, bytes]) -> None:
    read = read_checkpoint(Memory(files))
    parse_layers(read.tensors or ())
    target_from_checkpoint(read)


def _tokenizers(case: tuple[bytes, bytes]) -> None:
    checkpoints = [
        read_checkpoint(Memory({"config.json": b'{"model_type": "x"}', name: content}))
        for name, content in zip(("tokenizer.json", "tokenizer_config.json"), case, strict=True)
    ]
    ours, theirs = (read.tokenizer or Tokenizer() for read in checkpoints)
    ours.differs_from(theirs)


def _head_folder(config: bytes, weights: bytes | None) -> str:
    """A head; without ``weights`` its config.json alone."""
    file = written("head/model.safetensors", weights or b"")
    if weights is None:
        file.unlink()
    return str(written("head/config.json", config).parent)


def _command_check(case: tuple[bytes, bytes | None, str | None]) -> None:
    config, weights, setting = case
    words = ["check", "gpt-oss-20b", "--drafter", _head_folder(config, weights), "--json"]
    run_command([*words, *([] if setting is None else ["--set", setting])])


def _command_fit(case: tuple[bytes, bytes | None]) -> None:
    folder = _head_folder(*case)
    run_command(["fit", "gpt-oss-20b", "--drafter", folder, "--gpu-memory-gib", "80", "--json"])


def _response(status: int, headers: Mapping[str, str], body: bytes) -> requests.Response:
    response = requests.Response()
    response.status_code, response.url = status, "https://huggingface.co/"
    response.headers.update(headers)
    response.raw = io.BytesIO(body)
    return response


@contextmanager
def hub(case: tuple[int, dict[str, str], bytes]) -> Iterator[Hub]:
    """A Hub whose first response is that, and whose next ones are an empty listing."""
    answers = [_response(*case)]

    def get(*_: Any, **__: Any) -> requests.Response:
        return answers.pop() if answers else _response(200, {}, b"[]")

    with mock.patch("requests.Session.get", get):
        yield Hub("https://huggingface.co", "hf_token", "the token in HF_TOKEN")


def _listing(case: tuple[int, dict[str, str], bytes]) -> None:
    with hub(case) as access:
        source = HubSource("org/name", None, access)
        for name in source.names():
            source.digests(name)


def _revision(case: tuple[int, dict[str, str], bytes]) -> None:
    with hub(case) as access:
        resolve_revision(access, "org/name", "main")


def _hub_settings(environment: dict[str, str]) -> None:
    safe = {
        name: value.encode("utf-8", "replace").decode().replace("\0", "")
        for name, value in environment.items()
    }
    with mock.patch.dict(os.environ, safe, clear=True):
        Hub.of_environment()


CHECKPOINTS = st.builds(
    lambda model, changes: model | changes,
    st.sampled_from(MODELS),
    st.dictionaries(
        st.sampled_from(("config.json", *NAMES[1:8], "tokenizer.json", "tokenizer_config.json")),
        json_bytes(CONFIGS[2], INDEX, TOKENIZER, TOKENIZER_CONFIG) | HEADERS,
        max_size=3,
    ),
)
CONTENT = json.dumps(CONFIG_OF_HEAD).encode()
REAL_HEAD = json.loads((GEOMETRY / "gpt-oss-20b/p-eagle/config.json").read_text(encoding="utf-8"))
"""Of the target that these commands name."""
HUB_ANSWERS: list[tuple[int, dict[str, str]]] = [
    (200, {"Link": '<https://huggingface.co/api?cursor=x>; rel="next"'}),
    (206, {"X-Error-Message": "Access to this resource is disabled."}),
    (401, {"X-Error-Code": "RepoNotFound"}),
    (403, {"X-Error-Code": "GatedRepo"}),
    (404, {"X-Error-Code": "RevisionNotFound"}),
    (429, {"Retry-After": "3"}),
    (999, {"Location": "https://cdn.example/x"}),
]
PARSERS = (
    Parser("config.json", _config, [encoded(config) for config in CONFIGS], CheckpointError),
    Parser("config-alone", parse_config, [CONTENT], CheckpointError),  # in this thread
    Parser("config-checks", _checks, [(encoded(CONFIGS[2]), CONTENT)], PeagleError),
    Parser(
        "new-entry",
        _new_entry,
        [(encoded(CONFIGS[2]), CONTENT), (encoded(DEEPSEEK_V3), CONTENT)],
        PeagleError,
    ),
    Parser(
        "checkpoint",
        _checkpoint,
        [
            {"config.json": encoded(CONFIGS[2]), "model.safetensors": WEIGHTS},
            {**MODELS[1], "config.json": encoded(CONFIGS[2])},
        ],
        CheckpointError,
        inputs=CHECKPOINTS,
    ),
    Parser(
        "tokenizer", _tokenizers, [(encoded(TOKENIZER), encoded(TOKENIZER_CONFIG))], CheckpointError
    ),
    Parser(
        "command-check",
        quietly(_command_check),
        [(encoded(REAL_HEAD), None, None), (CONTENT, WEIGHTS, "max-model-len=8192")],
        ERRORS,
    ),
    Parser(
        "command-fit-head",
        quietly(_command_fit),
        [(encoded(REAL_HEAD), None), (CONTENT, WEIGHTS)],
        ERRORS,
    ),
    Parser(
        "hub-listing",
        _listing,
        [(status, headers, encoded(TREE)) for status, headers in HUB_ANSWERS],
        CheckpointError,
    ),
    Parser(
        "hub-revision",
        _revision,
        [(status, headers, encoded(REVISION)) for status, headers in HUB_ANSWERS],
        CheckpointError,
    ),
    Parser(
        "hub-settings",
        _hub_settings,
        [
            {"HF_TOKEN": "hf_abc", "HF_ENDPOINT": "https://x.example", "HF_HUB_OFFLINE": "1"},
            {"HF_HOME": "~x/y", "HF_TOKEN_PATH": "/nowhere"},
        ],
        CheckpointError,
    ),
)
