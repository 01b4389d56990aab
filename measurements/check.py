"""The time and the bytes that ``peagle check`` needs for a 120B target in S3.

The sandbox's S3 gets a target with the files, tensor names and header lengths of GPT-OSS-120B in
15 shards; only the tensors are smaller, to keep the upload short. A proxy in front of S3 counts the
bytes received, including listings.

Goals: at most 2 s and 5 MB.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import boto3

from measurements.timing import seconds
from peagle.sandbox.client import start_sandbox, stop_sandbox

ROUNDS = 7
GOAL_SECONDS = 2.0
GOAL_BYTES = 5_000_000

SHARDS = 15
LAYERS, HIDDEN, EXPERTS, WIDE, VOCABULARY = 36, 2880, 128, 5760, 201_088
BUCKET, PREFIX = "models-of-a-benchmark", "gpt-oss-120b"
CONFIG = Path(__file__).parents[1] / "model_catalog/configs/gpt-oss-120b/target/config.json"
TOKENIZER_BYTES = 27_868_174
INDEX = "model.safetensors.index.json"

Shape = tuple[str, tuple[int, ...]]
_SIZES = {"BF16": 2, "U8": 1}


def tensors() -> Iterator[tuple[str, Shape]]:
    """The 687 tensors of GPT-OSS-120B with their dtypes and shapes."""
    yield "model.embed_tokens.weight", ("BF16", (VOCABULARY, HIDDEN))
    for layer in range(LAYERS):
        for name, shape in _layer().items():
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", ("BF16", (HIDDEN,))
    yield "lm_head.weight", ("BF16", (VOCABULARY, HIDDEN))


def _layer() -> dict[str, Shape]:
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": ("BF16", (HIDDEN,)),
        "post_attention_layernorm.weight": ("BF16", (HIDDEN,)),
        "self_attn.sinks": ("BF16", (64,)),
        "self_attn.o_proj.weight": ("BF16", (HIDDEN, 4096)),
        "self_attn.o_proj.bias": ("BF16", (HIDDEN,)),
        "mlp.router.weight": ("BF16", (EXPERTS, HIDDEN)),
        "mlp.router.bias": ("BF16", (EXPERTS,)),
    }
    for name, out in (("q_proj", 4096), ("k_proj", 512), ("v_proj", 512)):
        shapes[f"self_attn.{name}.weight"] = ("BF16", (out, HIDDEN))
        shapes[f"self_attn.{name}.bias"] = ("BF16", (out,))
    for name, out in (("gate_up_proj", WIDE), ("down_proj", HIDDEN)):
        shapes[f"mlp.experts.{name}_blocks"] = ("U8", (EXPERTS, out, 90, 16))
        shapes[f"mlp.experts.{name}_scales"] = ("U8", (EXPERTS, out, 90))
        shapes[f"mlp.experts.{name}_bias"] = ("BF16", (EXPERTS, out))
    return shapes


def shard(held: Mapping[str, Shape]) -> bytes:
    """A safetensors file with smaller tensors, whose header is as long as the real one's."""
    real, _ = _header(held)
    text, size = _header({name: (dtype, _smaller(shape)) for name, (dtype, shape) in held.items()})
    padded = text.ljust(-(-len(real) // 8) * 8)
    return struct.pack("<Q", len(padded)) + padded + bytes(size)


def _header(held: Mapping[str, Shape]) -> tuple[bytes, int]:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in held.items():
        begin = end
        size = _SIZES[dtype]
        for number in shape:
            size *= number
        end += size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return json.dumps(header, separators=(",", ":")).encode(), end


def _smaller(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with the same number of dimensions and at most 1 MB."""
    return (1, 500, *shape[2:]) if len(shape) > 2 else tuple(min(size, 500) for size in shape)


def files() -> Iterator[tuple[str, bytes]]:
    """All objects of the target: the key below the prefix and the content."""
    everything = list(tensors())
    each = -(-len(everything) // SHARDS)
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        name = f"model-{number:05}-of-{SHARDS - 1:05}.safetensors"
        held = dict(everything[number * each : (number + 1) * each])
        weight_map |= dict.fromkeys(held, name)
        yield name, shard(held)
    yield INDEX, json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}).encode()
    yield "config.json", CONFIG.read_bytes()
    yield "tokenizer_config.json", b'{"tokenizer_class": "PreTrainedTokenizerFast"}'
    yield "tokenizer.json", bytes(TOKENIZER_BYTES)
    yield "original/model--00001-of-00007.safetensors", b"another copy"


def upload(url: str) -> int:
    """Upload the target to the S3 at ``url``; the size of all objects in bytes."""
    s3 = boto3.client("s3", endpoint_url=url)
    s3.create_bucket(Bucket=BUCKET)
    total = 0
    for name, content in files():
        s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{name}", Body=content)
        total += len(content)
    return total


class Proxy:
    """Forwards TCP connections to ``port`` and counts the bytes that come back."""

    def __init__(self, port: int) -> None:
        self.received = 0
        self._port = port
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, sink, counted in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._forward, args=(source, sink, counted), daemon=True
                ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if counted:
                    with self._lock:
                        self.received += len(piece)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def sandbox() -> Iterator[str]:
    """A sandbox with its own PEAGLE_HOME: its address; the environment is set for its clients."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["PEAGLE_HOME"] = home
        address = start_sandbox()
        try:
            os.environ |= address.environment()
            yield address.url
        finally:
            stop_sandbox()


def main() -> bool:
    """Measure and print one line per goal; whether all are met."""
    with sandbox() as url:
        total = upload(url)
        proxy = Proxy(int(url.rpartition(":")[2]))
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        place = f"s3://{BUCKET}/{PREFIX}"
        command = [sys.executable, "-m", "peagle.cli", "check", "gpt-oss-120b",
                   "--target", place, "--json"]  # fmt: skip
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        read = proxy.received
        assert [entry["location"] for entry in json.loads(done.stdout)["read"]] == [place]
        taken = statistics.median(seconds(command) for _ in range(ROUNDS))
    print(f"a 120B target in S3      {SHARDS} shards, {total / 1e6:.0f} MB in the sandbox")
    print(f"peagle check             {taken:.2f} s   goal {GOAL_SECONDS:.1f} s   "
          f"{taken / GOAL_SECONDS:.2f}")  # fmt: skip
    print(f"read from S3             {read / 1e6:.2f} MB   goal {GOAL_BYTES / 1e6:.1f} MB   "
          f"{read / GOAL_BYTES:.2f}")  # fmt: skip
    return taken <= GOAL_SECONDS and read <= GOAL_BYTES


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
