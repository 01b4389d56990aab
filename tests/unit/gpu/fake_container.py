"""A fake ``peagle_serve``: the protocol of warm starts over HTTP, without an engine.

To compile is to write one file to the cache, which ``VLLM_CACHE_ROOT`` names for the child process
as for the real engine. ``FAILS`` in the environment is the mode in which it exits at once.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

KEY = "0123456789abcdef" * 2
MODE = os.environ["PEAGLE_WARM"]
CACHE = Path(os.environ["PEAGLE_CACHE"]) / "warm" / KEY
ARTIFACTS = Path(os.environ["PEAGLE_ML_ROOT"]) / "model" / "warm"
COMPILED = b"kernel " * 4096


def log(message: str, **more: object) -> None:
    print(json.dumps({"time": "now", "level": "INFO", "message": message, **more}), flush=True)


def caches() -> dict[str, str]:
    """Restore or create caches, as the entrypoint does before it starts the engine."""
    if MODE == "off":
        return {}
    if MODE == "collect":
        CACHE.mkdir(parents=True)
    elif (manifest := ARTIFACTS / f"{KEY}.json").is_file():
        expected = json.loads(manifest.read_text())
        archive = (ARTIFACTS / f"{KEY}.tar.gz").read_bytes()
        assert hashlib.sha256(archive).hexdigest() == expected["sha256"]
        assert len(archive) == expected["size"]
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(CACHE, filter="data")
        log("warm start: restored 1 files", event="warm-start", restored=True, seconds=0.25)
    else:
        return {}
    return {"VLLM_CACHE_ROOT": str(CACHE / "vllm")}


def compile_into(folder: Path) -> None:
    """Compile as the engine does: quickly if the cache has the code."""
    known = (folder / "model").is_file()
    if not known:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model").write_bytes(COMPILED)
    seconds = 2.5 if known else 51.5
    log(f"init engine (profile, create kv cache, warmup model) took {seconds} s"
        f" (compilation: {seconds / 2} s)")  # fmt: skip


def packed() -> tuple[bytes, dict[str, object]]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.add(CACHE / "vllm", arcname="vllm")
    archive = gzip.compress(content.getvalue(), mtime=0)
    digest = hashlib.sha256(archive).hexdigest()
    return archive, {"format": 1, "key": KEY, "subject": {}, "size": len(archive), "files": 1,
                     "sha256": digest, "unpacked_bytes": len(COMPILED), "seconds_cold": 60.0,
                     "made": "now"}  # fmt: skip


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply(b"")

    def do_POST(self) -> None:
        requested = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("X-Amzn-SageMaker-Custom-Attributes") != "peagle=warm":
            self.reply(b"{}")
            return
        archive, manifest = packed()
        begin = requested.get("offset", 0)
        part = (
            archive[begin : begin + requested["length"]]
            if requested
            else json.dumps(manifest).encode()
        )
        self.reply(part)

    def reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if os.environ.get("FAILS") == MODE:
    log("the engine ended: no luck", event="crash")
    sys.exit(1)
engine_caches = caches()
server = HTTPServer(("127.0.0.1", int(os.environ["SAGEMAKER_BIND_TO_PORT"])), Server)
child = subprocess.Popen(["sleep", "600"], env={**os.environ, **engine_caches})
root = {**os.environ, **engine_caches}.get("VLLM_CACHE_ROOT") or f"{os.environ['HOME']}/.cache/vllm"
compile_into(Path(root))
log("the engine is healthy", event="healthy", seconds=60.0)


def stop(*_: object) -> None:
    child.kill()
    child.wait()
    os._exit(0)


signal.signal(signal.SIGTERM, stop)
server.serve_forever()
