"""A stand-in for vLLM's server, installed as vLLM for ``peagle_serve``.

``SAGEMAKER_STAND_IN`` in its environment selects its behavior: ``crash`` at start, ``silent``
(dies without output), ``deaf`` (never healthy), ``refusing`` (accepts no draft), ``stubborn`` (it
and a child ignore SIGTERM), ``eager`` (has compiled nothing), ``broken-off`` (streams no end). Its
arguments and environment are in ``given.json`` beside its log. With ``PEAGLE_WARM=collect`` it
answers as the container does.
"""

import json
import os
import signal
import socketserver
import sys
import time
from typing import Any

HOW = os.environ.get("SAGEMAKER_STAND_IN", "")
STUBBORN_CHILD = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
ANSWER = {"choices": [{"message": {"content": "Hello"}}], "usage": {"completion_tokens": 8}}
counted: dict[str, Any] = {
    "drafts": 0,
    "draft_tokens": 0,
    "accepted_tokens": 0,
    "accepted_per_position": [0, 0],
}
PACKED = b"what was compiled" * 1000


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class Handler(socketserver.StreamRequestHandler):
    """One request of HTTP. ``http.server`` does this too, and takes longer to import than the
    whole stand-in to start."""

    def handle(self) -> None:
        method, path, *_ = self.rfile.readline().split()
        headers: dict[str, str] = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if method == b"POST":
            body = self.rfile.read(int(headers.get("content-length", 0)))
            self._post(headers.get("x-amzn-sagemaker-custom-attributes", ""), body)
        elif path == b"/metrics":
            counts = {name: n for name, n in counted.items() if isinstance(n, int)}
            lines = (f"vllm:spec_decode_num_{name}_total {n}\n" for name, n in counts.items())
            self._send(200, "".join(lines).encode())
        elif method == b"GET":
            self._answer(503 if HOW == "deaf" else 200, {"data": [{"id": "peagle/tiny"}]})

    def _post(self, attributes: str, body: bytes) -> None:
        if attributes == "peagle=counters":
            return self._answer(200, counted)
        if attributes == "peagle=warm":
            return self._warm(json.loads(body))
        asked = json.loads(body)
        if not (asked.get("messages") or asked.get("prompt")):
            return self._answer(400, {"error": "no prompt"})
        accepted = 0 if HOW == "refusing" else 3
        counted["drafts"] += 2
        counted["draft_tokens"] += 4
        counted["accepted_tokens"] += accepted
        counted["accepted_per_position"] = [counted["drafts"], counted["drafts"] // 2]
        return self._stream() if asked.get("stream") else self._answer(200, ANSWER)

    def _stream(self) -> None:
        """The same answer as server-sent events; ``broken-off`` leaves out the end."""
        text = {"choices": [{"delta": {"content": "Hello"}}]}
        used = {"choices": [], "usage": ANSWER["usage"]}
        events = [json.dumps(text), json.dumps(used), "[DONE]"]
        events = events[:1] if HOW == "broken-off" else events
        self._send(200, "".join(f"data: {event}\n\n" for event in events).encode())

    def _warm(self, asked: dict[str, Any]) -> None:
        if os.environ.get("PEAGLE_WARM") != "collect":
            return self._answer(403, {"error": "this container does not collect"})
        if HOW == "eager":
            return self._answer(409, {"error": "nothing was compiled"})
        if asked:
            return self._send(200, PACKED[asked["offset"] : asked["offset"] + asked["length"]])
        import hashlib

        sha256 = hashlib.sha256(PACKED).hexdigest()
        manifest = {"format": 1, "key": "a" * 32, "size": len(PACKED), "sha256": sha256, "files": 1,
                "unpacked_bytes": 1, "seconds_cold": 70.2}  # fmt: skip
        return self._answer(200, manifest)

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.0 {status} -\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)


def main() -> None:
    with open("given.json", "w", encoding="utf-8") as record:
        json.dump({"argv": sys.argv[1:], "environment": dict(os.environ)}, record)
    print("INFO 11-20 11:34:09 [stand_in.py:1] beginning", flush=True)
    if HOW == "crash":
        raise ValueError("the head and the target are incompatible")
    if HOW == "silent":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        import subprocess

        subprocess.Popen([sys.executable, "-c", STUBBORN_CHILD])
        time.sleep(0.1)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
