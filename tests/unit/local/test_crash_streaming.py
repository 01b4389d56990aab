"""Why an engine that streams its weights from S3 ended. The lines are those of vLLM 0.28.0, with
runai-model-streamer 0.17.0."""

from __future__ import annotations

import pytest

from peagle.engine.logs import find_crash

CALLED = "(APIServer pid=7) botocore."
CASES = [
    (
        [
            "(APIServer pid=7)     raise error_class(parsed_response, operation_name)",
            f"{CALLED}errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) when calling the "
            "ListObjectsV2 operation: The specified bucket does not exist",
        ],
        "missing-weights",
        "NoSuchBucket",
        "peagle weights list",
    ),
    (
        [
            "(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error "
            "for ModelConfig",
            "(APIServer pid=7)   Value error, Invalid repository ID or local directory specified:"
            " '/var/cache/peagle/.cache/vllm/assets/model_streamer/b3717505'.",
            "(APIServer pid=7) Please verify the following requirements:",
        ],
        "missing-weights",
        "Invalid repository ID",
        "peagle weights list",
    ),
    (
        [f"{CALLED}exceptions.NoCredentialsError: Unable to locate credentials"],
        "no-access",
        "Unable to locate credentials",
        "s3:GetObject",
    ),
    (
        [
            f"{CALLED}exceptions.ClientError: An error occurred (AccessDenied) when calling the "
            "ListObjectsV2 operation: Access Denied"
        ],
        "no-access",
        "AccessDenied",
        "s3:ListBucket",
    ),
    (
        [
            f"{CALLED}exceptions.ClientError: An error occurred (403) when calling the HeadObject "
            "operation: Forbidden"
        ],
        "no-access",
        "403",
        "the endpoint's role",
    ),
    (
        [
            "(APIServer pid=7) ModuleNotFoundError: No module named 'runai_model_streamer'",
            "(APIServer pid=7) ",
            "(APIServer pid=7) During handling of the above exception, another exception occurred:",
            "(APIServer pid=7) importlib.metadata.PackageNotFoundError: No package metadata was "
            "found for vllm",
        ],
        "missing-library",
        "runai_model_streamer",
        "runai-model-streamer[s3]",
    ),
]


@pytest.mark.parametrize(("lines", "cause", "word", "fix"), CASES, ids=lambda case: str(case)[:20])
def test_the_deciding_line_is_found_with_its_fix(
    lines: list[str], cause: str, word: str, fix: str
) -> None:
    crash = find_crash(["(APIServer pid=7) Traceback (most recent call last):", *lines])

    assert crash.cause == cause
    assert word in crash.line
    assert fix in " ".join((crash.fix, *crash.command))
