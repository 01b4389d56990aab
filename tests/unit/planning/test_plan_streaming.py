"""`weights_by stream`: the engine reads S3 itself, without mounts, or the plan is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Streamer
from peagle.errors import UserError
from peagle.planning import Plan
from peagle.render.plan_file import plan_bytes, read_plan
from tests.support import raises_code
from tests.unit.planning.small_catalog import CATALOG, because, codes, finding_of, plan

PAIR = {"model_source": "s3://bucket/chat/target", "drafter": "s3://bucket/chat/drafter/"}
KNOWN = Streamer(package="runai-model-streamer[s3]", checked=date(2026, 7, 1), source="here")


def having(*versions: str) -> Catalog:
    """The small catalogue, in which the images of these versions have a streamer."""
    table = CATALOG.runtimes
    runtimes = tuple(
        runtime.model_copy(update={"streamer": KNOWN if runtime.vllm in versions else None})
        for runtime in table.runtimes
    )
    changed = table.model_copy(update={"runtimes": runtimes})
    return replace(CATALOG, runtimes=changed)


def streamed(**options: Any) -> Plan:
    return plan(catalog=having("0.28.0"), weights_by="stream", **{**PAIR, **options})


def test_target_and_drafter_are_streamed_and_nothing_is_mounted() -> None:
    made = streamed()

    assert made.mounts == ()
    assert made.environment["SM_VLLM_MODEL"] == "s3://bucket/chat/target/"
    assert made.environment["SM_VLLM_LOAD_FORMAT"] == "runai_streamer"
    drafter = '"model":"s3://bucket/chat/drafter/"'
    assert drafter in made.environment["SM_VLLM_SPECULATIVE_CONFIG"]
    assert made.target.weights.kind == "s3"
    assert codes(made, "error") == []


def test_weights_are_mounted_by_default() -> None:
    made = plan(catalog=having("0.28.0"), **PAIR)

    assert [mount.s3_uri for mount in made.mounts] == ["s3://bucket/chat/"]
    assert not {"SM_VLLM_LOAD_FORMAT", "AWS_DEFAULT_REGION"} & made.environment.keys()
    assert "weights-streamed" not in codes(made)


def test_a_drafter_of_the_hub_is_downloaded_by_the_engine() -> None:
    made = streamed(drafter="me/head")

    assert made.mounts == ()
    assert '"model":"me/head"' in made.environment["SM_VLLM_SPECULATIVE_CONFIG"]


def test_a_drafter_in_a_folder_is_uploaded_and_mounted() -> None:
    made = streamed(drafter="/data/head", name="n")

    assert made.environment["SM_VLLM_MODEL"] == "s3://bucket/chat/target/"
    assert '"/opt/ml/model/drafter"' in made.environment["SM_VLLM_SPECULATIVE_CONFIG"]
    (mount,) = made.mounts
    assert (mount.channel, mount.s3_uri) == (None, "s3://${ModelBucket}/peagle-toolkit/n/")


def test_a_target_alone_is_streamed() -> None:
    made = streamed(drafter=None, speculation=False)

    assert made.mounts == ()
    assert "SM_VLLM_SPECULATIVE_CONFIG" not in made.environment


@pytest.mark.parametrize(
    ("pair", "where"), [("chat", "on the Hub (acme/chat)"), ("small", "in a folder (catalog:")]
)
def test_streaming_a_target_outside_s3_is_refused_with_the_sync_command(
    pair: str, where: str
) -> None:
    with raises_code("weights-not-in-s3", UserError) as refused:
        plan(pair, having("0.28.0"), weights_by="stream")

    assert where in refused.value.message
    assert f"peagle weights sync {pair} s3://BUCKET/PREFIX" in str(refused.value)
    assert "--model-source s3://BUCKET/PREFIX/target/" in refused.value.fix


def test_baked_weights_cannot_be_streamed() -> None:
    with raises_code("conflicting-options", UserError) as refused:
        streamed(baked_weights=True, image="111111111111.dkr.ecr.us-east-1.amazonaws.com/p:1")
    assert "--baked-weights" in refused.value.message
    assert "weights_by stream" in refused.value.message


def test_a_runtime_without_a_streamer_is_an_error_that_names_the_others() -> None:
    made = plan(catalog=having("0.28.0"), weights_by="stream", vllm="0.19.0", **PAIR)

    assert codes(made, "error") == ["runtime-without-streamer"]
    refused = finding_of(made, "runtime-without-streamer")
    assert "vLLM 0.19.0 is not known to contain the Run:ai model streamer" in refused.message
    assert refused.fix.startswith("use --vllm 0.28.0, or leave weights_by stream out")


def test_the_users_image_needs_a_runtime_with_a_streamer_too() -> None:
    own = "111111111111.dkr.ecr.us-east-1.amazonaws.com/peagle-chat:0.19.0-gpu-abc"
    made = plan(catalog=having("0.28.0"), weights_by="stream", vllm="0.19.0", image=own, **PAIR)

    assert "runtime-without-streamer" in codes(made, "error")


def test_without_any_streamer_the_fix_is_a_mount() -> None:
    made = plan(catalog=having(), weights_by="stream", **PAIR)

    assert finding_of(made, "runtime-without-streamer").fix.startswith(
        "leave weights_by stream out"
    )


def test_streamers_have_a_date_and_a_source() -> None:
    facts = [runtime.streamer for runtime in load_catalog().runtimes.runtimes if runtime.streamer]

    assert facts, "no runtime has a streamer"
    assert all(fact.package.startswith("runai-model-streamer") for fact in facts)
    assert all(fact.source for fact in facts)


def test_a_note_lists_the_permissions_of_the_role() -> None:
    found = finding_of(streamed(drafter="s3://heads/chat/"), "weights-streamed")

    assert found.level == "note"
    assert "17.0 GB from s3://bucket/chat/target/ and s3://heads/chat/" in found.message
    assert "s3:ListBucket and s3:GetObject on bucket and heads, in us-east-1" in found.fix


def test_only_streamed_weights_are_counted() -> None:
    found = finding_of(streamed(drafter="me/head"), "weights-streamed")

    assert "reads 16.0 GB from s3://bucket/chat/target/ at" in found.message


def test_the_streamer_has_a_region_and_a_buffer_limit() -> None:
    made = streamed(instance_type="ml.g5.12xlarge")

    assert made.environment["AWS_DEFAULT_REGION"] == made.region == "us-east-1"
    gpus = made.fit.tensor_parallel_size
    assert gpus > 1
    buffer = int(made.environment["RUNAI_STREAMER_MEMORY_LIMIT"])
    assert buffer * gpus == 4 * 2**30, "a quarter of 16 GiB, for all"
    assert "all GPUs" in str(because(made, "RUNAI_STREAMER_MEMORY_LIMIT"))


def test_the_startup_timeout_includes_streaming() -> None:
    one = streamed(instance_type="ml.g6e.xlarge", region="eu-west-1")
    # 17 GB at 100 MB/s, 600 s to compile; SageMaker itself copies nothing.
    assert (one.download_timeout_seconds, one.startup_timeout_seconds) == (60, 780)
    assert because(one, "download_timeout_seconds") == (
        "SageMaker copies no weights; the engine streams them"
    )
    several = streamed(instance_type="ml.g5.12xlarge")
    assert several.startup_timeout_seconds > one.startup_timeout_seconds, "each GPU reads all"


def test_streaming_overrides_the_catalogues_load_format() -> None:
    target = CATALOG.targets["acme/chat"]
    (setting, *_) = target.engine_arguments
    own = setting.model_copy(
        update={"name": "load-format", "value": "fastsafetensors", "gpu_architectures": ()}
    )
    catalog = having("0.28.0")
    changed = {**catalog.targets, target.id: target.model_copy(update={"engine_arguments": (own,)})}
    catalog = replace(catalog, targets=changed)

    mounted = plan(catalog=catalog, **PAIR)
    made = plan(catalog=catalog, weights_by="stream", **PAIR)

    assert mounted.environment["SM_VLLM_LOAD_FORMAT"] == "fastsafetensors"
    assert made.environment["SM_VLLM_LOAD_FORMAT"] == "runai_streamer"


def test_the_plan_survives_a_file(tmp_path: Path) -> None:
    made = streamed()
    file = tmp_path / "plan.json"
    file.write_bytes(plan_bytes(made))

    assert read_plan(file) == made
