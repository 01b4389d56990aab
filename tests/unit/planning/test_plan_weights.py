"""Weights: their sources, their paths for vLLM, and SageMaker's mounts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from peagle.catalog import load_catalog
from peagle.errors import Unsupported, UserError
from peagle.planning import Options, Plan, make_plan
from peagle.render import render
from peagle.render.formats import cloudformation
from peagle.render.plan_file import plan_bytes, read_plan
from peagle.s3uri import S3Uri
from peagle_serve.contract import is_s3_uri
from tests.support import decide_alike, raises_code
from tests.unit.planning.small_catalog import CATALOG, plan

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/chat:0.28.0"
AWS_IMAGE = plan(name="n").runtime.image
"""An image with vLLM and without weights."""
BUCKET = "s3://${ModelBucket}/peagle-toolkit"
ADDITIONAL = "/opt/ml/additional-model-data-sources/drafter"


def layout(made: Plan) -> tuple[str, str, list[tuple[str | None, str]]]:
    """The paths of target and drafter for vLLM, and the mounts."""
    assert made.drafter is not None
    assert made.drafter.weights is not None
    paths = made.target.weights.engine_path, made.drafter.weights.engine_path
    assert made.engine_arguments[:2] == ("--model", paths[0])
    assert f'"model":"{paths[1]}"' in made.engine_arguments[-1]
    return (*paths, [(mount.channel, mount.s3_uri) for mount in made.mounts])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("acme/chat", "acme/chat-p-eagle", [])),
        (
            {"drafter": "/data/head"},
            ("acme/chat", "/opt/ml/model/drafter", [(None, f"{BUCKET}/n/")]),
        ),
        (
            {"drafter": "s3://bucket/head"},
            ("acme/chat", "/opt/ml/model", [(None, "s3://bucket/head/")]),
        ),
        (
            {"model_source": "s3://bucket/model/"},
            ("/opt/ml/model", "acme/chat-p-eagle", [(None, "s3://bucket/model/")]),
        ),
        (
            {"model_source": "s3://bucket/model", "drafter": "s3://bucket/head"},
            (
                "/opt/ml/model",
                ADDITIONAL,
                [(None, "s3://bucket/model/"), ("drafter", "s3://bucket/head/")],
            ),
        ),
        (
            {"model_source": "s3://bucket/model", "drafter": "/data/head"},
            (
                "/opt/ml/model",
                ADDITIONAL,
                [(None, "s3://bucket/model/"), ("drafter", f"{BUCKET}/n/drafter/")],
            ),
        ),
        (
            {"pair": "small"},
            ("/opt/ml/model/target", "/opt/ml/model/drafter", [(None, f"{BUCKET}/n/")]),
        ),
        (
            {"pair": "small", "drafter": "s3://bucket/head"},
            (
                "/opt/ml/model/target",
                ADDITIONAL,
                [(None, f"{BUCKET}/n/"), ("drafter", "s3://bucket/head/")],
            ),
        ),
        (
            {"pair": "small", "drafter": "me/head"},
            ("/opt/ml/model/target", "me/head", [(None, f"{BUCKET}/n/")]),
        ),
    ],
)
def test_each_source_has_its_path_and_mounts(
    options: dict[str, Any], expected: tuple[str, str, list[tuple[str | None, str]]]
) -> None:
    assert layout(plan(name="n", **options)) == expected


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({}, ("acme/chat", "acme/chat-p-eagle")),
        ({"pair": "small"}, ("/opt/ml/model/target", "/opt/ml/model/drafter")),
        ({"drafter": "/data/head"}, ("acme/chat", "/opt/ml/model/drafter")),
        ({"pair": "small", "drafter": "me/head"}, ("/opt/ml/model/target", "me/head")),
    ],
)
def test_baked_weights_keep_their_paths_without_mounts_and_uploads(
    options: dict[str, Any], paths: tuple[str, str]
) -> None:
    """The image has them below PEAGLE_ML_ROOT, or in its Hub cache."""
    made = plan(name="n", image=IMAGE, baked_weights=True, **options)
    assert layout(made) == (*paths, [])
    assert made.target.weights.kind == "image"
    assert made.target.weights.s3_uri is None
    assert made.download_timeout_seconds == 60
    assert made.startup_timeout_seconds <= 720, "nothing is downloaded while it starts"


@pytest.mark.parametrize(
    ("options", "code", "named", "fix"),
    [
        ({}, "missing-option", "--image", "--image URI"),
        ({"image": AWS_IMAGE}, "missing-option", "--image", "--image URI"),
        (
            {"image": IMAGE, "model_source": "s3://bucket/model/"},
            "weights-in-s3",
            "s3://bucket/model/",
            "--baked-weights",
        ),
        (
            {"image": IMAGE, "drafter": "s3://bucket/head/"},
            "weights-in-s3",
            "s3://bucket/head/",
            "--baked-weights",
        ),
    ],
)
def test_weights_that_cannot_be_baked_are_refused(
    options: dict[str, Any], code: str, named: str, fix: str
) -> None:
    with raises_code(code, UserError) as refused:
        plan(baked_weights=True, **options)
    assert named in refused.value.message
    assert fix in refused.value.fix


def test_baked_weights_have_no_findings_about_the_hub() -> None:
    found = {finding.code for finding in plan(image=IMAGE, baked_weights=True).findings}
    assert not found & {"target-is-gated", "revision-not-pinned"}


def test_weights_on_the_hub_have_the_catalogues_revision() -> None:
    arguments = plan().engine_arguments
    assert arguments[arguments.index("--revision") + 1] == "0123456"
    assert "--revision" not in plan(model_source="s3://bucket/model").engine_arguments
    assert '"revision":"abc123"' in arguments[-1]


def test_the_served_name_is_the_targets_id() -> None:
    for made in (plan(), plan(model_source="s3://bucket/model")):
        arguments = made.engine_arguments
        assert arguments[arguments.index("--served-model-name") + 1] == "acme/chat"


def test_bundled_folders_have_a_catalog_location() -> None:
    made = plan("small", name="n")
    assert made.pair == "acme/small+p-eagle"
    weights = made.target.weights
    assert weights.kind == "directory"
    assert weights.location == "catalog:acme/small/target"
    assert weights.s3_uri == f"{BUCKET}/n/target/"


def test_folders_of_the_users_own_catalogue_are_paths(tmp_path: Path) -> None:
    own = {**CATALOG.origins, "acme/small": str(tmp_path / "acme" / "small.yaml")}
    made = plan("small", catalog=replace(CATALOG, origins=own))
    assert made.target.weights.location == str(tmp_path / "acme" / "small" / "target")


@pytest.mark.parametrize(
    "address", ["s3://", "s3://b/x", "s3://BUCKET/x", "s3://bucket/a b", "s3://bucket/50%/x"]
)
def test_an_invalid_s3_uri_is_refused(address: str) -> None:
    options: tuple[dict[str, Any], ...] = ({"model_source": address}, {"drafter": address})
    for option in options:
        with raises_code("invalid-s3-uri", UserError) as refused:
            plan(**option)
        assert repr(address) in refused.value.message
        assert "s3://bucket/folder" in refused.value.fix


def test_a_model_source_must_be_in_s3() -> None:
    with raises_code("invalid-s3-uri", UserError) as refused:
        plan(model_source="/data/model")
    assert "--model-source '/data/model'" in refused.value.message
    assert "s3://bucket/folder/" in refused.value.fix


@pytest.mark.parametrize(
    ("options", "download", "startup"),
    [
        # 17 GB: 340 s from the Hub, 85 s to the GPU, 600 s to compile.
        ({}, 60, 1080),
        # 16 GB from S3 at 100 MB/s and a minute; 1 GB from the Hub.
        ({"model_source": "s3://bucket/model"}, 240, 720),
        ({"pair": "small"}, 120, 660),
    ],
)
def test_timeouts_depend_on_the_source_of_the_weights(
    options: dict[str, Any], download: int, startup: int
) -> None:
    made = plan(**options)
    assert made.download_timeout_seconds == download
    assert made.startup_timeout_seconds == startup


TARGET = "s3://models/pair/target/"


def tiny(drafter: str) -> Plan:
    options = Options(pair="tiny", model_source=TARGET, drafter=drafter)
    return make_plan(options, load_catalog())


def test_the_layout_of_weights_sync_needs_one_mount() -> None:
    made = tiny("s3://models/pair/drafter")

    assert [(mount.channel, mount.s3_uri) for mount in made.mounts] == [(None, "s3://models/pair/")]
    assert made.environment["SM_VLLM_MODEL"] == "/opt/ml/model/target"
    assert '"/opt/ml/model/drafter"' in made.environment["SM_VLLM_SPECULATIVE_CONFIG"]


def test_cloudformation_renders_one_mount() -> None:
    model = cloudformation.template(tiny("s3://models/pair/drafter/"))["Resources"]["Model"]
    container = model["Properties"]["PrimaryContainer"]

    assert container["ModelDataSource"]["S3DataSource"]["S3Uri"] == "s3://models/pair/"
    assert "AdditionalModelDataSources" not in container


@pytest.mark.parametrize(
    "drafter", ["s3://models/other/drafter/", "s3://models/pair/head/", "s3://others/pair/drafter/"]
)
def test_other_prefixes_need_two_mounts(drafter: str) -> None:
    made = tiny(drafter)

    assert [mount.s3_uri for mount in made.mounts] == [TARGET, drafter]
    assert made.environment["SM_VLLM_MODEL"] == "/opt/ml/model"
    with raises_code("format-unsupported", Unsupported):
        render("cloudformation", made, load_catalog())


def test_a_drafter_alone_is_mounted_alone() -> None:
    made = plan(drafter="s3://models/pair/drafter/")

    assert [mount.s3_uri for mount in made.mounts] == ["s3://models/pair/drafter/"]
    assert '"/opt/ml/model"' in made.environment["SM_VLLM_SPECULATIVE_CONFIG"]


@pytest.mark.parametrize("by", ["mount", "stream"])
def test_a_scheme_in_capitals_is_written_in_lower_case(by: Literal["mount", "stream"]) -> None:
    """SageMaker and S3's clients accept lower case only; vLLM accepts both."""
    written = Options(
        pair="tiny",
        model_source=TARGET,
        drafter="s3://models/pair/drafter",
        weights_by=by,
        observe=True,
        capture_data="s3://captured/a",
    )
    capitals = written.model_copy(
        update={
            "model_source": f"S3{TARGET[2:]}",
            "drafter": "S3://models/pair/drafter",
            "capture_data": "S3://captured/a",
        }
    )

    assert decide_alike(make_plan(capitals, load_catalog()), make_plan(written, load_catalog()))


@pytest.mark.parametrize("uri", ["s3://b-1/k/", "S3://b-1/k/", "s3://b-1/k", "S3://b-1/k"])
def test_every_form_of_a_prefix_is_mounted_alike(uri: str) -> None:
    assert is_s3_uri(uri)
    assert str(S3Uri.parse(uri).folder) == str(S3Uri.mountable(uri)) == "s3://b-1/k/"


@pytest.mark.parametrize("text", ["s3:/b-1/k/", "s3:b-1/k/", "https://b-1/k/", "b-1/k/", "S3", ""])
def test_other_texts_are_no_s3_uri(text: str) -> None:
    assert not is_s3_uri(text)
    for read in (S3Uri.parse, S3Uri.mountable):
        with pytest.raises(ValueError, match="not an s3://"):
            read(text)


def test_the_plan_survives_a_file(tmp_path: Path) -> None:
    made = tiny("s3://models/pair/drafter/")
    file = tmp_path / "plan.json"
    file.write_bytes(plan_bytes(made))

    assert read_plan(file) == made
