"""What engines and Docker say: logs, event streams, answers over HTTP, inspections."""

import http.client
import io
import json
from collections.abc import Sequence
from unittest import mock

from hypothesis import strategies as st

from peagle.engine import local
from peagle.engine.logs import StartLog, crash_error, find_crash, last_line, progress_line
from peagle.engine.machine import install_error
from peagle.engine.state import read_warm_start
from peagle.engine_log import log_fields, log_text
from peagle.errors import PeagleError
from peagle.proof import StreamCounts
from peagle.sandbox.observability import stock_line
from tests.fuzz.inputs import binary, encoded, json_bytes
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.examples import LINES
from tests.fuzz.parsers.files import folder, written

OURS = (
    {"time": "2026-11-22T08:00:10.123Z", "level": "ERROR", "stage": "starting", "message": "ended",
     "event": "crash", "cause": "memory", "reason": "out of memory", "fix": "use less",
     "command": ["peagle", "fit"], "exit_code": 1},
    {"time": "2026-11-22T08:00:10.123Z", "level": "INFO", "stage": "serving", "from": "engine",
     "message": "x", "process": "EngineCore pid=1", "place": "core.py:1"},
    {"time": "2026-11-22T08:00:10.123Z", "level": "INFO", "event": "warm-start", "restored": True,
     "key": "a" * 32, "files": 3, "unpacked_bytes": 10, "seconds": 0.5, "seconds_cold": 60,
     "message": "restored"},
    {"time": "2026-11-22T08:00:10.123Z", "level": "WARNING", "event": "warm-start",
     "restored": False, "reason": "another device", "differences": ["cpu"], "message": "cold"},
    {"time": "2026-11-22T08:00:10.123Z", "level": "INFO", "event": "start", "argv": ["a", "b"],
     "message": "starting vLLM"},
)  # fmt: skip
STATISTICS = (
    "INFO 11-22 08:00:10 [loggers.py:271] Engine 000: Avg prompt throughput: 9.1 tokens/s, Avg "
    "generation throughput: 12.8 tokens/s, Running: 0 reqs",
    "INFO 11-22 08:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.50, "
    "Accepted throughput: 1.00 tokens/s, Drafted throughput: 5.00 tokens/s, Accepted: 15 tokens, "
    "Drafted: 50 tokens, Per-position acceptance rate: 0.900, 0.500, 0.100, Avg Draft acceptance "
    "rate: 30.0%",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.1s/it]",
)
WHOLE_LOG = [*LINES, *STATISTICS, *map(json.dumps, OURS)]
ANSWER = {
    "object": "chat.completion", "choices": [{"index": 0, "message": {
        "content": "Hello", "reasoning": "thinks"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 2},
}  # fmt: skip
PIECE = {"choices": [{"delta": {"content": "Hello"}}], "usage": None}
FAILURE = {"object": "error", "error": {"message": "no", "code": 400}}
COUNTERS = {"drafts": 10, "draft_tokens": 50, "accepted_tokens": 20,
            "accepted_per_position": [10, 6, 4], "speculation": True}  # fmt: skip


def events(*documents: bytes) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in (*documents, b"[DONE]"))


def chunked(body: bytes) -> bytes:
    parts = [body[at : at + 40] for at in range(0, len(body), 40)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def response(body: bytes, status: int = 200, in_chunks: bool = False) -> bytes:
    length = b"Transfer-Encoding: chunked" if in_chunks else b"Content-Length: %d" % len(body)
    content = chunked(body) if in_chunks else body
    return b"HTTP/1.1 %d OK\r\n%s\r\n\r\n%s" % (status, length, content)


STREAM = events(json.dumps(PIECE).encode(), json.dumps(PIECE).encode())
STREAMS = json_bytes(PIECE, ANSWER, FAILURE).map(events) | binary(STREAM)
RESPONSES = st.one_of(
    st.builds(
        response,
        json_bytes(ANSWER, COUNTERS, FAILURE),
        st.sampled_from((200, 200, 400, 500)),
        st.booleans(),
    ),
    st.builds(response, STREAMS, st.just(200), st.booleans()),
    binary(response(STREAM, 200, True), response(json.dumps(ANSWER).encode())),
)


class Connection:
    """A connection over which these bytes arrive."""

    received = b""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def request(self, *_: object) -> None:
        pass

    def getresponse(self) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(self)  # type: ignore[arg-type]
        response.begin()
        return response

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(type(self).received)

    def close(self) -> None:
        pass


def _over_http(received: bytes) -> None:
    Connection.received = received
    with (
        mock.patch("http.client.HTTPConnection", Connection),
        mock.patch.dict("os.environ", {"PEAGLE_HOME": str(folder() / "home")}),
    ):
        for ask in (
            lambda: list(local.stream(1, {})),
            lambda: local.ask(1, {}),
            lambda: local.counters(1),
        ):
            try:
                ask()
            except PeagleError:
                continue


def _statistics(lines: Sequence[str]) -> None:
    counts = StreamCounts()
    for number, line in enumerate(lines):
        counts.add(f"variant/{number % 2}", line)
    counts.progress(10, 2)
    assert counts.silent is not None


def _log(lines: Sequence[str]) -> None:
    for line in lines:
        log_fields(line)
        log_text(line)
        progress_line(line)
        stock_line(line)
    log = StartLog()
    for line in lines:
        log.add(line)
        log.judge()
    log.judge_end()
    find_crash(lines)
    path = written("engine.log", "\n".join(lines))
    crash_error(path)
    last_line(path)
    read_warm_start(path)
    install_error(path)


PARSERS = (
    Parser("engine-log", _log, [WHOLE_LOG]),
    Parser("engine-statistics", _statistics, [list(STATISTICS)]),
    Parser(
        "engine-answer",
        _over_http,
        [
            response(encoded(document), status)
            for document in (ANSWER, COUNTERS, FAILURE)
            for status in (200, 400)
        ]
        + [response(STREAM, 200, True)],
        inputs=RESPONSES,
    ),
)
