"""The deciding line in an engine's log. The lines are those of vLLM 0.28.0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.engine.logs import crash_error, crash_of, find_crash
from peagle_serve.crash import Crash

BEGINNING = [
    'serve: ["python", "-m", "vllm.entrypoints.openai.api_server", "--port", "8080"]',
    "INFO 11-20 11:34:09 [importing.py:88] Triton not installed or not compatible; certain "
    "GPU-related functions will not be available.",
    "(APIServer pid=7) INFO 11-20 11:34:11 [model.py:672] Resolved architecture: LlamaForCausalLM",
    "(APIServer pid=7) WARNING 11-20 11:34:11 [vllm.py:652] ValueError: not an error, a warning",
]
CONSEQUENCES = [
    "Process EngineCore:",
    "Traceback (most recent call last):",
    '  File "core.py", line 1, in run',
    "(APIServer pid=7) Traceback (most recent call last):",
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}",
    "resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore "
    "objects to clean up at shutdown",
    "  warnings.warn('resource_tracker: There appear to be %d '",
]
PYDANTIC = "pydantic_core._pydantic_core.ValidationError: 1 validation error for"


@pytest.mark.parametrize(
    ("messages", "line", "fix"),
    [
        (
            ["serve: error: no model is named (set SM_VLLM_MODEL)"],
            "serve: error: no model is named (set SM_VLLM_MODEL)",
            "",
        ),
        (
            [
                f"(APIServer pid=7) {PYDANTIC} SpeculativeConfig",
                "(APIServer pid=7) method",
                "(APIServer pid=7)   Input should be 'ngram' or 'eagle3' [type=literal_error, "
                "input_value='foo', input_type=str]",
                "(APIServer pid=7)     For further information visit https://errors.pydantic.dev",
            ],
            "SpeculativeConfig method Input should be 'ngram' or 'eagle3', not 'foo'",
            "speculative configuration",
        ),
        (
            [
                f"(APIServer pid=7) {PYDANTIC} ModelConfig",
                "(APIServer pid=7)   Value error, User-specified max_model_len (4096) is greater "
                "than the derived max_model_len (max_position_embeddings=2048.0) "
                "[type=value_error, input_value=ArgsKwargs((), {'a': 'x'}), input_type=ArgsKwargs]",
            ],
            "ModelConfig Value error, User-specified max_model_len (4096) is greater than the "
            "derived max_model_len (max_position_embeddings=2048.0)",
            "lower --max-model-len",
        ),
        (
            ["ImportError: Arctic Inference is required for suffix decoding."],
            "ImportError: Arctic Inference is required for suffix decoding.",
            "",
        ),
        (["Fatal Python error: Segmentation fault"], "Fatal Python error: Segmentation fault", ""),
    ],
)
def test_the_deciding_line_is_found_among_its_consequences(
    messages: list[str], line: str, fix: str
) -> None:
    crash = find_crash([*BEGINNING, *messages, *CONSEQUENCES])
    assert crash.line == line
    assert fix in crash.fix


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


def test_a_refusal_of_the_container_is_the_reason() -> None:
    refused = {"time": "2026-11-20T11:50:01.000Z", "level": "ERROR", "stage": "checking",
               "event": "refused", "cause": "environment",
               "message": "no model is named", "fix": "set SM_VLLM_MODEL"}  # fmt: skip
    crash = find_crash(["ValueError: earlier", json.dumps(refused)])
    assert crash == Crash("no model is named", "set SM_VLLM_MODEL", "environment")


@pytest.mark.thorough
def test_a_huge_log_that_is_not_text_is_searched_at_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n" * 500_000 + b"ValueError: the last word\n")
    assert crash_of(log).line == "ValueError: the last word"


def test_the_error_for_the_user_has_the_reason_and_the_fix(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    error = crash_error(log)
    assert error.exit_code == 4
    assert "Address already in use" in error.message
    assert "another port" in error.fix
