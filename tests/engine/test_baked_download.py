"""What an image's RUN instruction downloads with the Hub library of the engine."""

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from peagle.engine.machine import find_engine
from peagle.errors import EngineMissing
from peagle.render.image import Download, Recipe, dockerfile
from tests.conftest import DEFAULT_VLLM
from tests.unit.rendering.plans import plan_of

pytestmark = pytest.mark.engine
REPO, COMMIT = "acme/model", "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model [1].safetensors": b"weights",
    "pytorch_model.bin": b"the same again",
    "original/model.safetensors": b"and again",
}
LISTED_FILES = ("config.json", "model [1].safetensors")
FIND = (
    "from huggingface_hub import snapshot_download as find\n"
    f"print(find({REPO!r}, allow_patterns=['*.safetensors', '*.bin', '*.pt']))"
)
"""As vLLM looks for a drafter's weights, offline."""


class _Hub(BaseHTTPRequestHandler):
    """A Hub that can only list and send one commit."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
        return self._send(FILES[name]) if name in FILES else self.send_error(404)

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body, usedforsecurity=False).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    """The URL of a Hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    running = threading.Thread(target=server.serve_forever)
    running.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    running.join()
    server.server_close()


def test_only_the_listed_files_are_downloaded_and_the_engine_finds_them_by_branch(
    hub: str, tmp_path: Path
) -> None:
    try:
        python = str(find_engine(DEFAULT_VLLM).python)
    except EngineMissing as missing:
        pytest.skip(str(missing))
    cache = tmp_path / "hub"
    weights = (Download(REPO, "main", COMMIT, LISTED_FILES),)
    text = dockerfile(plan_of("from-hub"), Recipe("gpu", "base", None, weights=weights))
    (line,) = [line for line in text.splitlines() if line.startswith("RUN ")]
    argv = json.loads(line.removeprefix("RUN "))
    place = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_DISABLE_XET": "1", "HOME": str(tmp_path),
             "NO_PROXY": "127.0.0.1"}  # fmt: skip
    command = [str(cache) if word.endswith("/ml/hub") else word for word in argv[1:]]
    done = subprocess.run(
        [python, *command], env=place, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    offline = {**place, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    result = subprocess.run(
        [python, "-c", FIND], env=offline, check=True, capture_output=True, text=True
    )
    folder = Path(result.stdout.strip())
    kept = {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip
    assert kept == {name: FILES[name] for name in LISTED_FILES}
