"""The log of a starting container: when it says that the engine will never serve, and one line."""

import json
from pathlib import Path

import pytest

from peagle.engine.logs import StartLog, crash_error, find_crash, progress_line, read_crash
from peagle_serve.crash import Crash

CRASHES = Path(__file__).parents[1] / "containers" / "crashes"
START = "(APIServer pid=7) INFO 11-22 09:00:00 [api_utils.py:272] non-default args: {'model': 'a'}"
TRACEBACK = "(APIServer pid=7) Traceback (most recent call last):"
ENDED = "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above."


def _read(*lines: str) -> StartLog:
    log = StartLog()
    for line in lines:
        log.add(line)
    log.judge()
    return log


def _uncaught(exception: str) -> tuple[str, ...]:
    return START, TRACEBACK, f"(APIServer pid=7) {exception}"


def _in_engine(exception: str) -> tuple[str, ...]:
    core = "(EngineCore pid=8)"
    error = f"{core} ERROR 11-22 09:00:02 [core.py:9]"
    raised = (f"{error} Traceback (most recent call last):", f"{error} {exception}")
    return START, *raised, f"{core} {exception}", TRACEBACK, ENDED


def _ours(event: str, **fields: object) -> str:
    document = {"time": "t", "level": "ERROR", "stage": "ended", "message": "m", "event": event}
    return json.dumps({**document, **fields}, separators=(",", ":"))


@pytest.mark.parametrize("path", sorted(CRASHES.glob("*.log")), ids=lambda path: path.stem)
def test_each_recorded_crash_is_fatal(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    log = _read(*lines)
    assert log.fatal
    assert log.fatal.fix
    half = _read(*lines[: len(lines) // 3])
    assert half.fatal is None


@pytest.mark.parametrize("exception", [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "torch.AcceleratorError: CUDA error: device-side assert triggered",
    "ValueError: the head does not belong to this target",
    "RuntimeError: Cannot find any model weights with `/opt/ml/model`",
    "OSError: [Errno 28] No space left on device",
])  # fmt: skip
def test_what_a_restart_cannot_cure_is_fatal_in_any_process(exception: str) -> None:
    for lines in (_uncaught(exception), _in_engine(exception)):
        fatal = _read(*lines).fatal
        assert fatal
        assert fatal.line == exception


@pytest.mark.parametrize("exception", [
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool: Read timed out.",
    "huggingface_hub.errors.HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable",
    "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url",
    "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate "
    "the files on the Hub and we cannot find the snapshot. Please check your connection.",
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files.",
    "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling GetObject",
    "httpx.ConnectError: [Errno -3] Temporary failure in name resolution",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "RuntimeError: Timed out waiting for engine core processes to start",
])  # fmt: skip
def test_network_and_throttling_are_never_fatal(exception: str) -> None:
    log = StartLog()
    for _ in range(3):
        for line in (*_uncaught(exception), *_in_engine(exception)):
            log.add(line)
        log.judge()
    assert log.fatal is None


@pytest.mark.parametrize("exception", [
    "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the "
    "ListObjectsV2 operation",
    "RuntimeError: something else",
])  # fmt: skip
def test_what_a_restart_might_cure_is_fatal_once_a_restart_has_not(exception: str) -> None:
    log = StartLog()
    causes = []
    for _ in range(2):
        for line in _in_engine(exception):
            log.add(line)
        log.judge()
        log.judge()
        causes.append(log.fatal)
    assert causes[0] is None
    assert causes[1]
    assert causes[1].line == exception


def test_an_end_is_judged_once_all_of_its_lines_are_there() -> None:
    first, *details = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, Unknown quantization method: zzz.",
    )
    log = StartLog()
    for line in _uncaught(first):
        log.add(line)
    for line in details:
        log.add(f"(APIServer pid=7) {line}")
    log.judge()
    assert log.fatal
    assert "Unknown quantization method: zzz" in log.fatal.line


@pytest.mark.parametrize("lines", [
    (START, "(Worker pid=9) WARNING 11-22 09:00:00 [a.py:1] torch.OutOfMemoryError: retrying"),
    (START, "(Worker pid=9) ERROR 11-22 09:00:00 [a.py:1] torch.OutOfMemoryError: no memory"),
    ("Traceback (most recent call last):", "ValueError: caught by a library"),
    (START, "(APIServer pid=7) ERROR 11-22 09:00:00 [a.py:1] ValueError: logged, not raised"),
    (_ours("start", argv=["vllm"]), TRACEBACK, "(APIServer pid=7) ValueError: our log knows"),
    (_ours("restart", reason="r", cause="out-of-memory"),),
])  # fmt: skip
def test_an_error_without_the_end_of_the_engine_is_not_fatal(lines: tuple[str, ...]) -> None:
    assert _read(*lines).fatal is None


def test_the_end_that_our_entrypoint_reports_is_fatal_by_its_cause() -> None:
    start = _ours("start", argv=["vllm"])
    crash = _ours("crash", reason="no memory", cause="out-of-memory", fix="f")
    fatal = _read(start, crash).fatal
    assert fatal
    assert (fatal.line, fatal.fix) == ("no memory", "f")
    assert _read(start, _ours("crash", reason="busy", cause="port-in-use", fix="f")).fatal is None
    assert _read(_ours("refused", fix="f", cause="environment")).fatal


@pytest.mark.parametrize(("line", "shown"), [
    (START, ""),
    ('(APIServer pid=7) INFO: 10.0.0.1:1 - "GET /ping HTTP/1.1" 200 OK', ""),
    ("(APIServer pid=7) INFO 11-22 09:00:00 [a.py:1]  ▄▄ ▄█ █  version 0.28.0", ""),
    ("(Worker pid=9) WARNING 11-22 09:00:00 [a.py:1] libtcmalloc is not found", ""),
    (TRACEBACK, ""),
    (
        "Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]"
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:05<00:05]",
        "Loading safetensors checkpoint shards: 50%"
    ),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|####      | 20/51",
     "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 40%"),
    ("(Worker pid=9) INFO [a.py:1] Graph capturing finished in 3 secs",
     "Graph capturing finished in 3 secs"),
    (_ours("start", argv=["vllm", "--api-key", "k"], fix="f"), "m"),
    (f"(Worker pid=9) INFO [a.py:1] {'long ' * 40}", f"{'long ' * 20}...")
])  # fmt: skip
def test_progress_is_one_short_line_without_arguments(line: str, shown: str) -> None:
    assert progress_line(line) == shown
    assert _read("(Worker pid=9) INFO [a.py:1] before", line).progress == (shown or "before")


# The deciding line in an engine's log. The lines are those of vLLM 0.28.0.
def test_the_containers_last_crash_report_decides() -> None:
    shared = {"time": "t", "level": "ERROR", "stage": "ended", "event": "crash"}
    reports = [
        {**shared, "message": "x", "reason": reason, "cause": cause, "fix": fix}
        for reason, cause, fix in [
            ("no memory", "out-of-memory", "use a larger GPU"),
            ("killed by SIGKILL", "killed", "use a larger machine"),
        ]
    ]
    crash = find_crash(["ValueError: earlier", *map(json.dumps, reports)])
    assert crash == Crash("killed by SIGKILL", "use a larger machine", "killed")


def test_what_was_before_the_engine_was_healthy_again_is_no_crash(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory\n" + _healthy())
    assert read_crash(log).line == ""
    log.write_text(f"ValueError: earlier\n{_healthy()}Killed\n")
    assert read_crash(log).cause == "killed"


def _healthy() -> str:
    return '{"time": "t", "level": "INFO", "message": "m", "event": "healthy"}\n'


@pytest.mark.thorough
def test_a_huge_log_that_is_not_text_is_searched_at_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n" * 500_000 + b"ValueError: the last word\n")
    assert read_crash(log).line == "ValueError: the last word"


def test_the_error_for_the_user_has_the_reason_and_the_fix(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    error = crash_error(log)
    assert error.exit_code == 4
    assert "Address already in use" in error.message
    assert "another port" in error.fix
