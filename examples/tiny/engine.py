"""A vLLM server as a child process, and its client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.tiny.prompts import Prompt

START_SECONDS = 300
REQUEST_SECONDS = 300
COUNTER = re.compile(r"^vllm:spec_decode_(\w+)_total\{([^}]*)\} ([\d.e+]+)$", re.MULTILINE)
POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True)
class Speculation:
    """A head with its K; the P-EAGLE head drafts in parallel."""

    head: str
    k: int

    def config(self, pair: Path) -> dict[str, object]:
        """vLLM's --speculative-config."""
        return {
            "method": "eagle3",
            "model": str(pair / self.head),
            "num_speculative_tokens": self.k,
            "parallel_drafting": self.head == "p-eagle",
        }


@dataclass(frozen=True)
class Completion:
    """The server's response to one prompt."""

    tokens: list[int]
    text: str
    finish: str


class Server:
    """A running server; `serve` starts one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        """Whether /health answers 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:  # nosec B310 # our own engine
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def complete(self, prompt: Prompt, max_tokens: int) -> Completion:
        """Complete one prompt greedily."""
        body: dict[str, object] = {
            "temperature": 0,
            "max_tokens": max_tokens,
            "return_token_ids": True,
        }
        if prompt["kind"] == "chat":
            body["messages"] = [{"role": "user", "content": prompt["prompt"]}]
            choice = self._post("/v1/chat/completions", body)
            text = choice["message"]["content"]
        else:
            choice = self._post("/v1/completions", body | {"prompt": prompt["prompt"]})
            text = choice["text"]
        return Completion(choice["token_ids"], text, choice["finish_reason"])

    def version(self) -> str:
        """vLLM's version."""
        with urllib.request.urlopen(f"{self.url}/version", timeout=30) as reply:  # nosec B310 # our own engine
            return str(json.load(reply)["version"])

    def counters(self) -> dict[str, float]:
        """vLLM's speculation counters; names of those by position end in _0, _1, ..."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:  # nosec B310 # our own engine
            page = reply.read().decode()
        counters: dict[str, float] = {}
        for name, labels, value in COUNTER.findall(page):
            position = POSITION.search(labels)
            counters[f"{name}_{position[1]}" if position else name] = float(value)
        return counters

    def _post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as reply:  # nosec B310 # our own engine
            choice: dict[str, Any] = json.load(reply)["choices"][0]
        return choice


def argv(pair: Path, port: int, dtype: str, speculation: Speculation | None) -> list[str]:
    """The server's command line."""
    line = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    line += ["--model", str(pair / "target"), "--served-model-name", "tiny"]
    line += ["--dtype", dtype, "--port", str(port), "--enforce-eager"]
    if speculation:
        line += ["--speculative-config", json.dumps(speculation.config(pair))]
    return line


@contextlib.contextmanager
def serve(
    pair: Path, port: int, dtype: str, speculation: Speculation | None, log: Path
) -> Iterator[Server]:
    """Start vLLM, wait until it is ready, and stop it afterwards.

    Raises RuntimeError if it does not start.
    """
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stream:
        command = argv(pair.resolve(), port, dtype, speculation)
        process = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            yield _wait(process, Server(port), log)
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen[bytes], server: Server, log: Path) -> Server:
    limit = time.monotonic() + START_SECONDS
    while not server.ready():
        if process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"vLLM did not start; see {log}")
        time.sleep(1)
    return server
