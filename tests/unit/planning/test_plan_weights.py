"""Weights: their sources, their paths for vLLM, SageMaker's mounts, and streaming from S3."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

from peagle.aws.client import Aws
from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Streamer
from peagle.checkpoints import FolderSource, read_checkpoint
from peagle.data import data_folder
from peagle.errors import Unsupported
from peagle.planning import Options, Plan, make_plan
from peagle.planning.plan import Decisions, Weights
from peagle.planning.weights import choose_timeouts
from peagle.render import render
from peagle.render.formats import cloudformation
from peagle.weights.own_target import plan_pair
from tests.support import raises_code
from tests.unit.planning.rows import Expected, check_plan
from tests.unit.planning.small_catalog import CATALOG, plan, reason_of

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/chat:0.28.0"
BUCKET = "s3://${ModelBucket}/peagle-toolkit"
MODEL, TARGET = "/opt/ml/model", "/opt/ml/model/target"
FOLDER = "/opt/ml/model/drafter"
ADDITIONAL = "/opt/ml/additional-model-data-sources/drafter"
HEAD = {"drafter": "s3://bucket/head"}
SOURCE = {"model_source": "s3://bucket/model"}
BAKED = {"image": IMAGE, "baked_weights": True}


def layout(made: Plan) -> tuple[str, str, list[tuple[str | None, str]]]:
    """The paths of target and drafter for vLLM, and the mounts."""
    assert made.drafter is not None
    assert made.drafter.weights is not None
    paths = made.target.weights.engine_path, made.drafter.weights.engine_path
    assert made.engine_arguments[:2] == ("--model", paths[0])
    assert f'"model":"{paths[1]}"' in made.engine_arguments[-1]
    return (*paths, [(mount.channel, mount.s3_uri) for mount in made.mounts])


@pytest.mark.parametrize(("options", "target", "drafter", "mounts"), [
    ({}, "acme/chat", "acme/chat-p-eagle", []),
    ({"drafter": "/data/head"}, "acme/chat", FOLDER, [(None, f"{BUCKET}/n/")]),
    (HEAD, "acme/chat", MODEL, [(None, "s3://bucket/head/")]),
    (SOURCE, MODEL, "acme/chat-p-eagle", [(None, "s3://bucket/model/")]),
    (SOURCE | HEAD, MODEL, ADDITIONAL,
     [(None, "s3://bucket/model/"), ("drafter", "s3://bucket/head/")]),
    (SOURCE | {"drafter": "/data/head"}, MODEL, ADDITIONAL,
     [(None, "s3://bucket/model/"), ("drafter", f"{BUCKET}/n/drafter/")]),
    ({"pair": "small"}, TARGET, FOLDER, [(None, f"{BUCKET}/n/")]),
    ({"pair": "small", **HEAD}, TARGET, ADDITIONAL,
     [(None, f"{BUCKET}/n/"), ("drafter", "s3://bucket/head/")]),
    ({"pair": "small", "drafter": "me/head"}, TARGET, "me/head", [(None, f"{BUCKET}/n/")]),
    (BAKED, "acme/chat", "acme/chat-p-eagle", []),
    (BAKED | {"pair": "small"}, TARGET, FOLDER, []),
    (BAKED | {"drafter": "/data/head"}, "acme/chat", FOLDER, []),
    (BAKED | {"pair": "small", "drafter": "me/head"}, TARGET, "me/head", []),
])  # fmt: skip
def test_each_source_has_its_path_and_mounts(
    options: dict[str, Any], target: str, drafter: str, mounts: list[tuple[str | None, str]]
) -> None:
    made = plan(name="n", **options)
    assert layout(made) == (target, drafter, mounts)
    if "baked_weights" in options:  # the image has them below PEAGLE_ML_ROOT, or in its Hub cache
        check_plan(made, {
            "target.weights.kind": "image", "target.weights.s3_uri": None,
            "download_timeout_seconds": 60, "lacks": {"target-is-gated", "revision-not-pinned"},
        })  # fmt: skip
        assert made.startup_timeout_seconds <= 720, "nothing is downloaded while it starts"


KNOWN = Streamer(package="runai-model-streamer[s3]", checked=date(2026, 7, 1), source="here")
PAIR = {"model_source": "s3://bucket/chat/target", "drafter": "s3://bucket/chat/drafter/"}


def having(*versions: str) -> Catalog:
    """The small catalogue, in which the images of these versions have a streamer."""
    table = CATALOG.runtimes
    runtimes = tuple(
        runtime.model_copy(update={"streamer": KNOWN if runtime.vllm in versions else None})
        for runtime in table.runtimes
    )
    return replace(CATALOG, runtimes=table.model_copy(update={"runtimes": runtimes}))


STREAMING = having("0.28.0")
DOWNLOADED: tuple[dict[str, Any], Expected] = (
    {},
    {"download_timeout_seconds": 60, "startup_timeout_seconds": 1080},
)
"""17 GB: 340 s from the Hub, 85 s to the GPU, 600 s to compile."""
PLANS: dict[str, tuple[dict[str, Any], Expected]] = {
    "timeouts of weights on the Hub": DOWNLOADED,
    "of 16 GB in S3, and 1 GB on the Hub": (SOURCE, {
        "download_timeout_seconds": 240, "startup_timeout_seconds": 720}),
    "of folders": ({"pair": "small"}, {
        "download_timeout_seconds": 120, "startup_timeout_seconds": 660}),
    "the catalogue's revision": ({}, {
        "argument revision": "0123456", "argument served-model-name": "acme/chat"}),
    "no revision in S3": (SOURCE, {
        "argument revision": None, "argument served-model-name": "acme/chat"}),
    "folders that ship": ({"pair": "small", "name": "n"}, {
        "pair": "acme/small+p-eagle", "target.weights.kind": "directory",
        "target.weights.location": "catalog:acme/small/target",
        "target.weights.s3_uri": f"{BUCKET}/n/target/"}),
    "a drafter of weights sync alone": ({"drafter": "s3://models/pair/drafter/"}, {
        "mounts": [(None, "s3://models/pair/drafter/")], "drafter.weights.engine_path": MODEL}),
    "mounted by default": (PAIR, {
        "mounts": [(None, "s3://bucket/chat/")], "variable SM_VLLM_LOAD_FORMAT": None,
        "variable AWS_DEFAULT_REGION": None, "lacks": {"weights-streamed"}}),
    "streamed": (PAIR | {"weights_by": "stream"}, {
        "mounts": [], "variable SM_VLLM_MODEL": "s3://bucket/chat/target/", "errors": [],
        "variable SM_VLLM_LOAD_FORMAT": "runai_streamer", "target.weights.kind": "s3",
        "drafter.weights.engine_path": "s3://bucket/chat/drafter/",
        "fix weights-streamed":
        "s3:ListBucket and s3:GetObject on bucket, in us-east-1",
        "message weights-streamed": "17.0 GB from s3://bucket/chat/target/ and s3://bucket/chat/d"}),
    "streamed from two buckets": (PAIR | {"weights_by": "stream", "drafter": "s3://heads/chat/"}, {
        "fix weights-streamed": "s3:GetObject on bucket and heads, in us-east-1"}),
    "with a drafter of the Hub": (PAIR | {"weights_by": "stream", "drafter": "me/head"}, {
        "mounts": [], "drafter.weights.engine_path": "me/head",
        "message weights-streamed": "reads 16.0 GB from s3://bucket/chat/target/ at"}),
    "with a drafter in a folder": (
        PAIR | {"weights_by": "stream", "drafter": "/data/head", "name": "n"}, {
            "variable SM_VLLM_MODEL": "s3://bucket/chat/target/",
            "drafter.weights.engine_path": FOLDER, "mounts": [(None, f"{BUCKET}/n/")]}),
    "without a drafter": (
        {"model_source": PAIR["model_source"], "weights_by": "stream", "speculation": False},
        {"mounts": [], "variable SM_VLLM_SPECULATIVE_CONFIG": None}),
    "by an image without a streamer": (PAIR | {"weights_by": "stream", "vllm": "0.19.0"}, {
        "errors": ["runtime-without-streamer"],
        "message runtime-without-streamer":
        "vLLM 0.19.0 is not known to contain the Run:ai model streamer",
        "fix runtime-without-streamer": "leave --vllm out, or weights_by stream"}),
    "by an image of the user's": (
        PAIR | {"weights_by": "stream", "vllm": "0.19.0", "image": IMAGE}, {
            "has": {"runtime-without-streamer"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    options, expected = PLANS[name]
    check_plan(plan(**{"catalog": STREAMING, **options}), expected)


def test_folders_of_the_users_own_catalogue_are_paths(tmp_path: Path) -> None:
    origins = {**CATALOG.origins, "acme/small": str(tmp_path / "acme" / "small.yaml")}
    made = plan("small", catalog=replace(CATALOG, origins=origins))
    assert made.target.weights.location == str(tmp_path / "acme" / "small" / "target")


SYNCED = "s3://models/pair/target/"


def tiny(drafter: str) -> Plan:
    options = Options(pair="tiny", model_source=SYNCED, drafter=drafter)
    return make_plan(options, load_catalog())


def test_the_layout_of_weights_sync_needs_one_mount() -> None:
    made = tiny("s3://models/pair/drafter/")
    assert layout(made) == (TARGET, FOLDER, [(None, "s3://models/pair/")])
    model = cloudformation.template(made)["Resources"]["Model"]
    container = model["Properties"]["PrimaryContainer"]
    assert container["ModelDataSource"]["S3DataSource"]["S3Uri"] == "s3://models/pair/"
    assert "AdditionalModelDataSources" not in container


@pytest.mark.parametrize(
    "drafter", ["s3://models/other/drafter/", "s3://models/pair/head/", "s3://others/pair/drafter/"]
)
def test_other_prefixes_need_two_mounts(drafter: str) -> None:
    made = tiny(drafter)
    assert layout(made) == (MODEL, ADDITIONAL, [(None, SYNCED), ("drafter", drafter)])
    with raises_code("format-unsupported", Unsupported):
        render("cloudformation", made, load_catalog())


def streamed(**options: Any) -> Plan:
    return plan(catalog=STREAMING, weights_by="stream", **{**PAIR, **options})


def test_the_streamer_has_a_region_and_a_buffer_limit() -> None:
    made = streamed(instance_type="ml.g5.12xlarge")
    gpus = made.fit.tensor_parallel_size
    assert gpus > 1
    assert made.environment["AWS_DEFAULT_REGION"] == made.region == "us-east-1"
    buffer = int(made.environment["RUNAI_STREAMER_MEMORY_LIMIT"])
    assert buffer * gpus == 4 * 2**30, "a quarter of 16 GiB, for all"
    reason = reason_of(made, "RUNAI_STREAMER_MEMORY_LIMIT")
    assert reason is not None
    assert (reason.code, reason.values) == ("streamer-buffer", {"several": True})


def test_the_startup_timeout_includes_streaming() -> None:
    made = streamed(instance_type="ml.g6e.xlarge", region="eu-west-1")
    # 17 GB at 100 MB/s, 600 s to compile; SageMaker itself copies nothing.
    assert (made.download_timeout_seconds, made.startup_timeout_seconds) == (60, 780)
    several = streamed(instance_type="ml.g5.12xlarge")
    assert several.startup_timeout_seconds > made.startup_timeout_seconds, "each GPU reads all"


def test_streaming_overrides_the_catalogues_load_format() -> None:
    target = CATALOG.targets["acme/chat"]
    changes = {"name": "load-format", "value": "fastsafetensors", "gpu_architectures": ()}
    argument = target.engine_arguments[0].model_copy(update=changes)
    changed = target.model_copy(update={"engine_arguments": (argument,)})
    catalog = replace(STREAMING, targets={**STREAMING.targets, target.id: changed})
    formats = {"mount": "fastsafetensors", "stream": "runai_streamer"}
    for by, expected in formats.items():
        made = plan(catalog=catalog, weights_by=by, **PAIR)
        assert made.environment["SM_VLLM_LOAD_FORMAT"] == expected


OWN_HEAD = "s3://bucket/heads/mine/"


@pytest.mark.parametrize("copied", ["", "peagle/tiny+p-eagle"])
def test_the_pair_stays_the_named_one_whatever_the_head_is_a_copy_of(
    copied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = read_checkpoint(FolderSource(data_folder("model_catalog") / "peagle/tiny/p-eagle"))
    read = {"drafter": OWN_HEAD, "drafter_checkpoint": head}
    monkeypatch.setattr("peagle.weights.own_target.own_head", lambda location, aws_of: read)
    monkeypatch.setattr("peagle.weights.bucket.copied_pair", lambda aws, location: copied)
    made = plan_pair("tiny", {"drafter": OWN_HEAD}, load_catalog(), lambda: cast(Aws, None))
    assert made.target.id == "peagle/tiny"
    assert made.drafter is not None
    assert made.drafter.weights is not None
    assert made.drafter.weights.location == OWN_HEAD


IN_S3 = Weights(kind="s3", location="s3://b/t/", engine_path="/opt/ml/model")
ON_HUB = Weights(kind="hub", location="me/model", engine_path="me/model")
TIMEOUTS: dict[str, tuple[Weights, int, dict[str, Any], tuple[int, int, list[str]]]] = {
    # 100 MB/s from S3 and a minute; 200 MB/s to the GPU and ten minutes
    "one byte": (IN_S3, 1, {}, (120, 660, [])),
    "a minute more": (IN_S3, 6_000_000_000, {}, (120, 660, [])),
    "above it": (IN_S3, 6_000_000_001, {}, (180, 660, [])),
    "the longest": (IN_S3, 354_000_000_000, {}, (3600, 2400, [])),
    "longer than that": (IN_S3, 354_000_000_001, {}, (3600, 2400, ["timeout-at-maximum"])),
    # 50 MB/s from the Hub and 200 MB/s to the GPU
    "from the Hub": (ON_HUB, 120_000_000_000, {}, (60, 3600, [])),
    "longer from the Hub": (ON_HUB, 120_000_000_040, {}, (60, 3600, ["timeout-at-maximum"])),
    "the user's": (
        ON_HUB, 120_000_000_040, {"startup_timeout": 1800, "download_timeout": 90},
        (90, 1800, ["timeout-at-maximum"])),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMEOUTS)
def test_the_bounds_of_the_timeouts(name: str) -> None:
    weights, size, asked, (download, startup, codes) = TIMEOUTS[name]
    log, options = Decisions(), Options(pair="chat", **asked)
    assert choose_timeouts(options, [(weights, size)], 1, log) == (download, startup)
    assert [finding.code for finding in log.findings] == codes
    copied = "copied-from-s3" if weights.kind == "s3" else "not-copied"
    reasons = [because.code for because in log.reasons]
    assert reasons == ([] if asked else [copied, "time-to-start"])
