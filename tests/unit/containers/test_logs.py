"""Every line of the log is one JSON document, without secrets and prompts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine.logs import find_crash
from peagle.engine_log import log_text
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.crash import parse_crash
from peagle_serve.logs import (
    LONGEST,
    SERVING,
    STARTING,
    Log,
    Redactor,
    engine_fields,
    is_secret,
    restored_text,
)

HUB_TOKEN = "hf_" + "a1B2c3D4" * 4
AWS_KEY = "AKIA" + "ABCDEFGH23456789"
LOADING = "(EngineCore pid=8) INFO 11-20 11:34:26 [core.py:131] Loading [1/2]"


class Written:
    """A log, and its output."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        self.log = Log(Redactor({"HF_TOKEN": "very-secret"}), writing)

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    def lines(self) -> list[str]:
        """The lines so far."""
        self.log.info("mark", event="mark")
        read = b""
        while b'"event": "mark"' not in read:
            read += os.read(self._reading, 65536)
        return read.decode().splitlines()[:-1]


@pytest.mark.parametrize(("line", "level", "message", "process", "place"), [
    (LOADING, "INFO", "Loading [1/2]", "EngineCore pid=8", "core.py:131"),
    ("WARNING 11-20 11:34:26 [a.py:1] x", "WARNING", "x", None, "a.py:1"),
    ('INFO:     127.0.0.1:5 - "GET /ping"', "INFO", '127.0.0.1:5 - "GET /ping"', None, None),
    ("(A) ERROR:    boom", "ERROR", "boom", "A", None),
    ("ValueError: no", "ERROR", "ValueError: no", None, None),
    ("api_server.py: error: x", "ERROR", "api_server.py: error: x", None, None),
    ("/x.py:1: UserWarning: old", "WARNING", "/x.py:1: UserWarning: old", None, None),
    ("(A) Traceback (most recent call last):", "ERROR", "Traceback (most recent call last):", "A",
     None),
    ("(A) KeyError", "ERROR", "KeyError", "A", None),
    ("plain words", "INFO", "plain words", None, None),
    ('(APIServer pid=7)   File "core.py"', "ERROR", '  File "core.py"', "APIServer pid=7", None),
])  # fmt: skip
def test_lines_of_the_engine_are_parsed(
    line: str, level: str, message: str, process: str | None, place: str | None
) -> None:
    expected = {"level": level, "message": message, "process": process, "place": place}
    assert engine_fields(line) == {name: v for name, v in expected.items() if v is not None}


@pytest.mark.parametrize(("seconds", "cold", "text"), [
    (0.5, 80.4, "restored 3 files, 1.5 MB in 0.50 s (key k; a cold start takes 80 s)"),
    (0.0, None, "restored 3 files, 1.5 MB in 0.00 s (key k)"),
    (None, 80.4, "3 files, 1.5 MB were restored before (key k; a cold start takes 80 s)"),
    (None, None, "3 files, 1.5 MB were restored before (key k)"),
])  # fmt: skip
def test_what_was_restored(seconds: float | None, cold: float | None, text: str) -> None:
    fields = {"files": 3, "unpacked_bytes": 1_500_000, "key": "k"}
    assert restored_text({**fields, "seconds": seconds, "seconds_cold": cold}) == text


def test_every_line_has_time_level_and_stage() -> None:
    written = Written()
    written.log.info("begun", event="start", argv=["python", "--api-key", "x"])
    written.log.stage = STARTING
    written.log.warning("look")
    written.log.error("broken", "repair it", event="crash", cause="port-in-use", exit_code=1)
    written.log.engine("INFO 11-20 11:34:26 [a.py:1] with very-secret in it")
    begun, look, broken, engine = written.documents()
    assert {"time", "level", "stage", "message"} <= set(begun) & set(look) & set(engine)
    assert len(begun["time"]) == len("2026-11-20T11:34:26.131Z")
    assert (begun["stage"], begun["argv"]) == ("checking", ["python", "--api-key", "***"])
    assert (look["level"], look["stage"]) == ("WARNING", "starting")
    assert (broken["fix"], broken["cause"], broken["exit_code"]) == ("repair it", "port-in-use", 1)
    assert (engine["from"], engine["message"]) == ("engine", "with *** in it")


def test_counts_of_drafts_and_redrawn_lines() -> None:
    written = Written()
    counts = "SpecDecoding metrics: Mean acceptance length: 2, Accepted: 30 tokens, Drafted: 70 x"
    for line in (f"INFO 11-20 11:34:26 [a.py:1] {counts}", "\r  0% |   |\r100% |##|\r", "   ",
                 "\x1b[32mgreen\x1b[0m"):  # fmt: skip
        written.log.engine(line)
    first, *others = written.documents()
    assert (first["accepted_tokens"], first["drafted_tokens"]) == (30, 70)
    assert [document["message"] for document in others] == ["100% |##|", "green"]


@pytest.mark.parametrize("filler", ["x", '"', "\u65e5", "\ud800", "\x01"])
def test_a_line_is_short_enough_for_docker_and_keeps_its_end(filler: str) -> None:
    written = Written()
    written.log.engine(f"ValueError: {filler * 30_000} the end")
    (line,) = written.lines()
    assert len(line.encode()) < LONGEST + 1000 < 16_384
    assert json.loads(line)["message"].endswith("the end")


def test_log_text_shows_lines_for_people() -> None:
    written = Written()
    written.log.error("no model is named", "set SM_VLLM_MODEL", event="refused")
    written.log.stage = STARTING
    written.log.info("starting vLLM", event="start", argv=["python", "-m"])
    for line in (LOADING, "ValueError: the last word", "fake: line 2"):
        written.log.engine(line)
    assert [log_text(line) for line in written.lines()] == [
        "serve: error: no model is named (set SM_VLLM_MODEL)",
        'serve: starting vLLM: ["python", "-m"]',
        "(EngineCore pid=8) INFO [core.py:131] Loading [1/2]",
        "ValueError: the last word",
        "fake: line 2",
    ]
    for line in ("", "plain", "{", '{"time": ', '{"a": 1}', '{"time":1'):
        assert log_text(line) == line, "of another program"


@pytest.mark.parametrize(("text", "secret"), [
    (f"401 for {HUB_TOKEN}.", HUB_TOKEN),
    (f"key {AWS_KEY} was refused", AWS_KEY),
    ("Authorization: Bearer abc.def-ghi+jkl/mno=", "abc.def"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalr"),
    ("https://b.s3/x?X-Amz-Signature=00ff00ff&X-Amz-Credential=ABCD%2F20", "00ff00ff"),
    ("https://user:pass1234@host/x", "pass1234"),
    ("sagemaker-api-key-aHR0cHM6Ly9z", "aHR0"),
    ("jwt eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abcdef", "eyJzdWIi"),
    ("Request cmpl-1 details: prompt: 'my\ndiary', prompt_token_ids: [1, 2]", "diary"),
    ("NewRequestData(prompt_token_ids=[17, 18], x=1)", "17"),
    ("Generated response cmpl-1: output: 'a secret', finish", "a secret"),
    ("Loading weights took 0.35 seconds", ""),
    ("non-default args: {'api_key': None, 'max_num_batched_tokens': 2048}", ""),
    ("Avg prompt throughput: 0.3 tokens/s", ""),
])  # fmt: skip
def test_known_patterns_of_secrets_are_hidden(text: str, secret: str) -> None:
    shown = Redactor({}).text(text)
    assert (shown == text) is (not secret)
    assert not secret or (secret not in shown and "***" in shown)


def test_secrets_of_the_environment_are_hidden_everywhere() -> None:
    keys = {"SM_VLLM_API_KEY": '["first-key", "second-key"]', "MAX_TOKENS": "204800"}
    assert Redactor(keys).text("['first-key', 'second-key'] 204800") == "['***', '***'] 204800"
    shown = Redactor({}).argv(["--api-key=-s", "--model", "a", "--hf-token", "b", "c", "--x", "d"])
    assert shown == ["--api-key=***", "--model", "a", "--hf-token", "***", "***", "--x", "d"]


def test_input_values_are_hidden_only_while_serving() -> None:
    text = "Input should be 'a' [type=literal_error, input_value='my diary', input_type=str]"
    written = Written()
    written.log.stage = SERVING
    written.log.engine(text)
    assert "diary" in Redactor({}).text(text)
    assert "diary" not in written.lines()[0]


@given(st.text(), st.text("abcXYZ019-_/+=", min_size=6, max_size=60), st.text())
def test_no_secret_of_the_environment_is_shown(before: str, secret: str, after: str) -> None:
    redactor = Redactor({"HF_TOKEN": secret})
    assert secret not in redactor.text(before + secret + after).replace("***", "\0")
    assert secret not in json.dumps(redactor.argv(["--x", secret])).replace("***", "\0")


def test_a_long_text_is_not_cut_inside_of_a_secret() -> None:
    redactor = Redactor({"MY_SECRET": "first-half-second-half"})
    text = "x" * 30_000
    for place in range(5500, 5600, 5):
        shown = redactor.short(text[:place] + "first-half-second-half" + text)
        assert "half" not in shown
        assert len(shown) < 13_000


SECRET = (
    "MYPASSWORD DBPASS DB_PASS MYSQL_PWD DBPASSWD HFTOKEN HF_TOKEN OPENAI_APIKEY PASSWORD_2 "
    "mysecret SSH_PASSPHRASE DJANGO_SECRET_KEY SM_VLLM_api_key AWS_CREDS PASSWORDS API_TOKENS "
    "MY_SECRETS API_KEYS TOKENS ADMIN_TOKENS ACCESS_KEYS SSH_PRIVATE_KEYS VLLM_API_KEY MY_PASSWORD "
    "AWS_SECRET_ACCESS_KEY"
)
NO_SECRET = (
    "MAX_TOKENS SM_VLLM_SPEC_TOKENS VLLM_USE_FASTOKENS PWD OLDPWD BYPASS COMPASS PASSENGERS "
    "SM_VLLM_ALLOW_CREDENTIALS SM_VLLM_MAX_NUM_BATCHED_TOKENS "
    "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD"
)


@pytest.mark.parametrize(("names", "secret"), [(SECRET, True), (NO_SECRET, False)])
def test_a_name_says_whether_its_value_is_secret(names: str, secret: bool) -> None:
    for name in names.split():
        assert is_secret(name) is secret
        assert ("swordfish" in Redactor({name: "swordfish"}).text("swordfish")) is not secret


# Logs of vLLM's crashes: whole ones, and lines of our own runs, of its source and of reports.
LOGS = Path(__file__).parent / "crashes"
CRASHES: dict[str, tuple[str, str, str]] = json.loads((LOGS / "logs.json").read_text("utf-8"))
"""Log -> part of the line, cause and part of the fix."""
CORPUS: list[tuple[str, str, str]] = json.loads((LOGS / "corpus.json").read_text("utf-8"))
"""Lines, cause, and a word of the fix."""
CONSEQUENCES = [
    "Process EngineCore:",
    "(APIServer pid=7) Traceback (most recent call last):",
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}",
]
HEALTHY = [
    "(APIServer pid=7) INFO 11-20 11:34:11 [x.py:1] worker exited with code 137, restarted",
    'INFO:     127.0.0.1:4 - "POST /invocations HTTP/1.1" 200 OK',
    "(APIServer pid=7) INFO 11-20 [x.py:6] killed 3 idle streams; GPU KV cache usage: 13.7%",
    "(EngineCore pid=8) WARNING 11-20 11:34:11 [x.py:6] exit code 137",
]


@pytest.mark.parametrize(("log", "cause", "fix"), CORPUS, ids=lambda part: str(part)[:40])
def test_a_log_has_its_cause_and_a_fix(log: str, cause: str, fix: str) -> None:
    lines = [*HEALTHY, *log.splitlines(), *CONSEQUENCES]
    crash = find_crash(lines)
    assert (crash.cause, bool(crash.fix)) == (cause, bool(cause))
    assert fix in " ".join((crash.fix, *crash.command))
    assert crash == parse_crash(lines)
    assert not any(code in crash.line for code in ("\x1b", "#033", "^["))


def test_a_cause_decides_before_the_kill_that_followed_it() -> None:
    crash = parse_crash(["Killed", "OSError: [Errno 28] No space left on device"])
    assert crash.cause == "disk-full"
    assert parse_crash(["ValueError: strange", "exit code 137"]).cause == "killed"
    assert parse_crash(HEALTHY).line == ""


@pytest.mark.parametrize("name", CRASHES)
def test_the_cause_is_found_in_a_real_log(name: str) -> None:
    words, cause, fix = CRASHES[name]
    crash = parse_crash((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())
    assert words in crash.line
    assert crash.cause == cause
    assert fix in crash.fix
    assert "\n" not in str(InvalidEnvironment(crash.line, crash.fix))


def test_every_log_has_an_expectation() -> None:
    assert {file.stem for file in LOGS.glob("*.log")} == set(CRASHES)


def test_lines_of_another_process_do_not_belong_to_a_message() -> None:
    lines = ["(Worker pid=9) ValueError: no", "(EngineCore pid=8) goes on", "(Worker pid=9) more"]
    assert parse_crash(lines).line == "ValueError: no"


@pytest.mark.parametrize(("length", "shown"), [
    (299, "ValueError: " + "a" * 287),
    (300, "ValueError: " + "a" * 288),
    (301, "ValueError: " + "a" * 138 + " ... " + "a" * 100),
])  # fmt: skip
def test_of_a_long_message_the_start_and_the_end_are_shown(length: int, shown: str) -> None:
    assert parse_crash([f"ValueError: {'a' * (length - 12)}"]).line == shown


@pytest.mark.parametrize(("following", "shown"), [
    (["b"], "ValueError: a b"),
    (["b", "c"], "ValueError: a b c"),
    (["b", "c", "d"], "ValueError: a b c"),
    (["", "b"], "ValueError: a"),
    (["(EngineCore pid=7) ERROR b"], "ValueError: a"),
    (["File x"], "ValueError: a"),
    (["During handling"], "ValueError: a"),
])  # fmt: skip
def test_a_message_has_at_most_two_following_lines_of_its_process(
    following: list[str], shown: str
) -> None:
    assert parse_crash(["ValueError: a", *following]).line == shown


@pytest.mark.parametrize(("line", "shown"), [
    ("[type=int, input_value='x', input_type=str]", "a, not 'x'"),
    ("[type=int, input_value=7, input_type=int]", "a, not 7"),
    ("[type=int, input_value={'k': 1}, input_type=dict]", "a"),
])  # fmt: skip
def test_of_pydantics_details_a_simple_value_stays(line: str, shown: str) -> None:
    assert parse_crash([f"ValueError: a {line}"]).line == f"ValueError: {shown}"


@pytest.mark.parametrize(("lines", "shown"), [
    (["    assert x > 1", "AssertionError"], "AssertionError: assert x > 1"),
    (["    raise Odd", "    ^^^^^", "OddError"], "OddError: raise Odd"),
    (["    value = 1", "OddError"], "OddError"),
    (["OddError"], "OddError"),
])  # fmt: skip
def test_the_code_says_what_a_bare_exception_does_not(lines: list[str], shown: str) -> None:
    assert parse_crash(lines).line == shown
