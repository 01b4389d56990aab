"""What users type: options, names, addresses; and the plan files that they give."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import click
from hypothesis import strategies as st

from peagle.catalog import load_catalog
from peagle.checks.facts import destinations, parse_ecr_image, parse_tag_version
from peagle.cli.main import cli
from peagle.errors import PeagleError
from peagle.planning import Options, make_plan
from peagle.planning.weights import parse_pins
from peagle.render.image import parse_tag, split_image
from peagle.render.plan_file import digest, plan_document, plan_from, read_plan
from peagle.request_validation import validate
from peagle.s3uri import S3Uri
from peagle.vllm.environment import check_environment, settings_in, to_environment
from peagle.weights.layout import weights_prefix
from tests.fuzz.inputs import documents, texts
from tests.fuzz.parser import Parser, quietly
from tests.fuzz.parsers.examples import ENVIRONMENT
from tests.fuzz.parsers.files import written

ERRORS = (PeagleError, click.ClickException, click.exceptions.Exit, click.Abort)
OPTIONS: dict[str, tuple[str, ...]] = {
    "--k": ("5",), "--concurrency": ("8",), "--max-model-len": ("8192",), "--name": ("my-name",),
    "--instance-type": ("ml.g6.xlarge", "ml.p5.48xlarge"), "--instance-count": ("2",),
    "--drafter": ("ngram", "s3://bucket/head/", "org/head@main"), "--region": ("eu-west-1",),
    "--model-source": ("s3://bucket/model/",), "--vllm": ("0.28.0",), "--ami": ("default",),
    "--image": ("123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1",),
    "--max-price-per-hour": ("5",),
    "--min-tokens-per-second": ("100",), "--env": ("A=b", "VLLM_LOGGING_LEVEL=DEBUG"),
    "--set": ("max-num-batched-tokens=8192", "gpu-memory-utilization=0.8", "no-enforce-eager",
              'compilation-config={"a": 1}'),
    "--tag": ("team=ml", "cost center=a b"),
}  # fmt: skip
"""Options of `peagle plan`, with valid values."""
TYPED = st.lists(
    st.sampled_from(
        [(flag, value) for flag, values in OPTIONS.items() for value in values]
    ).flatmap(lambda pair: st.tuples(st.just(pair[0]), st.just(pair[1]) | texts(pair[1], most=2))),
    max_size=3,
)
PAIRS = st.sampled_from(("tiny", "gpt-oss-20b", "qwen3-8b+ngram")) | texts("gpt-oss-20b+p-eagle")
IMAGES = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0-gpu-py312-cu130-ubuntu22.04",
    "vllm/vllm-openai:v0.28.0-cu128",
    f"x@sha256:{'a' * 64}",
    "debian:bookworm-slim",
    "peagle/x:1-2",
)
CONTAINER: dict[str, Any] = {
    "Image": IMAGES[0], "Environment": {"SM_VLLM_MODEL": "/opt/ml/model"},
    "ModelDataSource": {"S3DataSource": {"S3Uri": "s3://b/k/", "S3DataType": "S3Prefix",
                                         "CompressionType": "None"}},
}  # fmt: skip
CREATE_MODEL = {
    "ModelName": "m", "ExecutionRoleArn": "arn:aws:iam::123456789012:role/x",
    "PrimaryContainer": CONTAINER,
    "Tags": [{"Key": "a", "Value": "b"}],
}  # fmt: skip
CREATE_CONFIG = {
    "EndpointConfigName": "c",
    "ProductionVariants": [
        {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.g6.xlarge",
         "InitialInstanceCount": 1, "InferenceAmiVersion": "al2-ami-sagemaker-inference-gpu-3-1",
         "ContainerStartupHealthCheckTimeoutInSeconds": 600,
         "ManagedInstanceScaling": {"Status": "ENABLED", "MinInstanceCount": 1,
                                    "MaxInstanceCount": 2},
         "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}},
    ],
}  # fmt: skip


@cache
def plan_text() -> str:
    return json.dumps(plan_document(make_plan(Options(pair="tiny", name="tiny"), load_catalog())))


def plan_example() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(plan_text())
    return document


def _with_digest(document: Any) -> Any:
    """A changed plan, as if its digest were right: the reader must look further."""
    if isinstance(document, dict) and "digest" in document:
        try:
            document["digest"] = digest(document)
        except Exception:  # not every damaged document can be written
            return document
    return document


def _plan(document: Any) -> None:
    plan_from(document, "plan.json")


def _plan_file(content: bytes) -> None:
    read_plan(written("plan.json", content))


def _typed(case: tuple[str, Sequence[tuple[str, str]]]) -> None:
    pair, options = case
    words = [word for option in options for word in option]
    run_command(["plan", *words, "--json", "--", pair])


def run_command(words: Sequence[str]) -> None:
    """``peagle`` in this process."""
    arguments = [word.replace("\0", "") for word in words]
    cli.main(arguments, "peagle", standalone_mode=False)


def _fit(case: tuple[str, Sequence[tuple[str, str]]]) -> None:
    pair, options = case
    kept = [(flag, value) for flag, value in options if flag in _OF_FIT]
    words = [word for option in kept for word in option]
    run_command(["fit", *words, "--gpu-memory-gib", "80", "--json", "--", pair])


_OF_FIT = ("--k", "--concurrency", "--max-model-len", "--instance-type", "--set", "--vllm")


def _each(*functions: Any) -> Any:
    """All of the functions on one input, each until its promised error."""

    def run(value: Any) -> None:
        for function in functions:
            try:
                function(value)
            except (PeagleError, ValueError):
                continue

    return run


def _destinations(environment: dict[str, str]) -> None:
    destinations(environment, isolated=False)


def _engine_arguments(words: list[str]) -> None:
    environment = to_environment(words)
    check_environment(environment)
    settings_in(environment)


def _request(case: tuple[str, Any]) -> None:
    operation, parameters = case
    if isinstance(parameters, dict):
        list(validate("sagemaker", operation, parameters, ()))


PARSERS = (
    Parser(
        "plan-file",
        _plan_file,
        [plan_text().encode(), plan_text()[:300].encode(), b'{"format": 1}'],
        PeagleError,
    ),
    Parser(
        "plan",
        _plan,
        [plan_example(), {"format": 1, "pair": "tiny+p-eagle", "name": 7}],
        PeagleError,
        inputs=documents(plan_example()).map(_with_digest),
    ),
    Parser(
        "command-plan",
        quietly(_typed),
        [
            ("tiny", []),
            ("gpt-oss-20b", [("--k", "5"), ("--set", "max-num-batched-tokens=8192")]),
            ("gpt-oss-20b", [("--image", IMAGES[0]), ("--env", "A=b")]),
            ("tiny", [("--tag", "a=b")]),
        ],
        ERRORS,
        inputs=st.tuples(PAIRS, TYPED),
    ),
    Parser(
        "command-fit", quietly(_fit), [("gpt-oss-20b", [])], ERRORS, inputs=st.tuples(PAIRS, TYPED)
    ),
    Parser(
        "engine-arguments",
        _engine_arguments,
        [["--max-model-len", "8192", "--speculative-config", '{"k": 1}']],
        PeagleError,
    ),
    Parser(
        "engine-variables",
        _each(settings_in, parse_pins, _destinations),
        [ENVIRONMENT],
        PeagleError,
    ),
    Parser(
        "s3-uri",
        _each(S3Uri.parse, S3Uri.mountable, weights_prefix),
        ["s3://bucket/key/", "s3:/x/y"],
    ),
    Parser(
        "image-name",
        _each(split_image, parse_tag, parse_ecr_image, parse_tag_version),
        list(IMAGES),
    ),
    Parser(
        "request",
        _request,
        [("create_model", CREATE_MODEL), ("create_endpoint_config", CREATE_CONFIG)],
        inputs=st.sampled_from(("create_model", "create_endpoint_config")).flatmap(
            lambda name: st.tuples(st.just(name), documents(CREATE_MODEL, CREATE_CONFIG))
        ),
    ),
)
