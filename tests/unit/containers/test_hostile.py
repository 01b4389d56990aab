"""Variables and files that ended the entrypoint in a traceback, a hang or gigabytes of memory: each
is refused with a fix, or used as it is."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle_serve import command, supervisor
from peagle_serve.checkpoint import read_json
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.logs import Log, Redactor
from tests.unit.containers.recording import container_in
from tests.unit.containers.weights import HEAD, HEAD_TENSORS, pair, safetensors

PORT = 45_871
INDEX = "model.safetensors.index.json"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A valid pair, and a vLLM that is found and not started."""
    container = container_in(tmp_path / "lib")
    monkeypatch.syspath_prepend(container.folder)
    monkeypatch.setattr(command, "check_port", lambda host, port: None)
    return {**pair(tmp_path), "SAGEMAKER_BIND_TO_PORT": str(PORT), "HOME": str(tmp_path)}


def refusal(environment: dict[str, str]) -> str:
    """Message and fix; "" if vLLM would be started."""
    output = os.open(os.devnull, os.O_WRONLY)
    try:
        command._prepare(["serve"], environment, Log(Redactor(environment), output))
    except InvalidEnvironment as error:
        return f"{error.message} ({error.fix})"
    finally:
        os.close(output)
    return ""


def test_the_pair_of_these_tests_is_served(environment: dict[str, str]) -> None:
    assert refusal(environment) == ""


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SAGEMAKER_BIND_TO_PORT", "9" * 5000, "a whole number from 1 to 65535"),
        ("PEAGLE_DRAIN_SECONDS", "9" * 5000, "a whole number from 0 to 1000000"),
        ("PEAGLE_DRAIN_SECONDS", "99999999999", "a whole number from 0 to 1000000"),
        ("PEAGLE_RESTARTS", "9" * 5000, "a whole number from 0 to 1000000"),
        ("MY_SECRET", "[" * 100_000, ""),
        ("HF_TOKEN", "[" + "9" * 5000 + "]", ""),
        ("SM_VLLM_X", "-eyJ" * 30_000, ""),
        ("SM_VLLM_X", "Generated response x " * 6000, ""),
        ("SM_VLLM_X", "[" * 100_000, ""),
        ("SM_VLLM_X", "[" + "9" * 5000 + "]", ""),
        ("SM_VLLM_X", "{} " * 20_000 + "[" * 50_000, ""),
        ("SM_VLLM_MODEL", "/" + "a" * 300, "cannot be read: File name too long"),
        ("SM_VLLM_MODEL", "/" + "a/" * 3000, "cannot be read: File name too long"),
        ("SM_VLLM_SPECULATIVE_CONFIG", '{"a":' * 50_000, "maximum recursion depth"),
        ("SM_VLLM_SPECULATIVE_CONFIG", '{"a": ' + "9" * 5000 + "}", "cannot be read"),
        ("SM_VLLM_SPECULATIVE_CONFIG", '{"model": "\\ud800"}', "half of a surrogate pair"),
        ("SM_VLLM_SPECULATIVE_CONFIG", '{"model": "a", "model": "b"}', "has 'model' twice"),
    ],
    ids=range(17),
)
def test_a_hostile_variable(
    variable: str, value: str, message: str, environment: dict[str, str]
) -> None:
    begin = time.process_time()

    found = refusal({**environment, variable: value})

    assert time.process_time() - begin < 2
    assert message in found
    assert bool(message) is bool(found)


@pytest.mark.parametrize("host", ["\u00e4..b", "\u00e9" * 70])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(InvalidEnvironment, match="not the name of a host"):
        supervisor.check_port(host, PORT)


def header(text: str, length: int | None = None) -> Callable[[Path], object]:
    """Weights with this header, of the ``length`` that it claims."""
    raw = text.encode()
    data = struct.pack("<Q", len(raw) if length is None else length) + raw
    return lambda file: file.write_bytes(data)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(data)


def many_layers(file: Path) -> None:
    file.write_text(json.dumps({**HEAD, "num_hidden_layers": 2**31 - 1}))
    tensors = {**HEAD_TENSORS, "layers.0.a.weight": [1]}
    (file.parent / "model.safetensors").write_bytes(safetensors(tensors))


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def huge(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(50_000_000_000)


HOSTILE_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "pipe": ("target/config.json", os.mkfifo, "has no config.json"),
    "pipe of weights": ("head/model.safetensors", os.mkfifo, "Not a regular file"),
    "pipe as index": (f"target/{INDEX}", os.mkfifo, "Not a regular file"),
    "device": ("head/config.json", endless, "has no config.json"),
    "folder": ("target/config.json", Path.mkdir, "has no config.json"),
    "50 GB": ("target/config.json", huge, "More than 1,000,000 bytes"),
    "50 GB of index": (f"target/{INDEX}", huge, "More than 32,000,000 bytes"),
    "50 GB of header": ("head/model.safetensors", huge, "its header is not valid JSON"),
    "hidden file of macOS": ("head/._model.safetensors", content(b"\0\5\26\7" * 20), ""),
    "damaged file outside of the index": ("head/extra.safetensors", content(b"x"), ""),
    "layers": ("head/config.json", many_layers, "num_hidden_layers"),
    "layers of the target": ("target/config.json", content(b'{"num_hidden_layers": 2147483647}'),
                             "num_hidden_layers is 2147483647, not a number of at most 1,000"),
    "no attention heads": ("target/config.json", content(b'{"num_attention_heads": 0}'),
                           "num_attention_heads is 0, not a positive number"),
    "types of layers": ("target/config.json",
                        content(b'{"layer_types": [' + b"1," * 1000 + b"1]}"),
                        "not a list of at most 1,000"),
    "depth": ("target/config.json", content(b"[" * 100_000), "maximum recursion depth"),
    "name of a layer": ("head/model.safetensors",
                        content(safetensors({**HEAD_TENSORS, f"layers.{'9' * 8000}.a": [1]})), ""),
    "length": ("head/model.safetensors", header("{}", 2**64 - 1), "is truncated"),
    "30 MB of header": ("head/model.safetensors", header("[" + "[]," * 10_000_000), "10 MB"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_a_hostile_file(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    path, put, message = HOSTILE_FILES[name]
    file = tmp_path / path
    file.unlink(missing_ok=True)
    if name == "damaged file outside of the index":
        weight_map = dict.fromkeys(HEAD_TENSORS, "model.safetensors")
        (file.parent / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    put(file)
    begin = time.process_time()

    found = refusal(environment)

    assert time.process_time() - begin < 2
    assert message in found
    assert bool(message) is bool(found)


def test_a_configuration_may_hold_infinity_as_transformers_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_json("SM_VLLM_MODEL", file) == {"time_step_limit": [0.0, float("inf")]}
