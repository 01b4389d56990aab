"""`--weights-by stream`: the engine reads S3 itself, nothing is mounted, and where that cannot be
it is refused."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Streamer
from peagle.errors import PlanFileError, UserError
from peagle.planning import Options, Plan, make_plan
from peagle.render.plan_file import digest, plan_bytes, plan_document, plan_from, read_plan
from peagle.render.requests import plan_arguments
from tests.unit.planning.small_catalog import CATALOG, because, codes, plan

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
    return CATALOG.model_copy(update={"runtimes": changed})


def streamed(**options: Any) -> Plan:
    return plan(catalog=having("0.28.0"), weights_by="stream", **{**PAIR, **options})


def finding(made: Plan, code: str) -> Any:
    return next(found for found in made.findings if found.code == code)


def test_target_and_drafter_are_streamed_and_nothing_is_mounted() -> None:
    made = streamed()

    assert made.mounts == ()
    assert made.environment["SM_VLLM_MODEL"] == "s3://bucket/chat/target/"
    assert made.environment["SM_VLLM_LOAD_FORMAT"] == "runai_streamer"
    drafter = '"model":"s3://bucket/chat/drafter/"'
    assert drafter in made.environment["SM_VLLM_SPECULATIVE_CONFIG"]
    assert made.target.weights.kind == "s3"
    assert codes(made, "error") == []


def test_the_usual_way_is_a_mount() -> None:
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
    ("pair", "where"), [("chat", "on the hub (acme/chat)"), ("small", "in a folder (catalog:")]
)
def test_a_target_that_is_not_in_s3_is_refused_with_the_command_that_brings_it_there(
    pair: str, where: str
) -> None:
    with pytest.raises(UserError) as refused:
        plan(pair, having("0.28.0"), weights_by="stream")

    assert where in refused.value.message
    assert f"peagle weights sync {pair} s3://BUCKET/PREFIX" in refused.value.fix
    assert "--model-source s3://BUCKET/PREFIX/target/" in refused.value.fix


def test_what_is_baked_into_an_image_is_not_streamed() -> None:
    with pytest.raises(UserError, match="cannot be combined"):
        streamed(baked_weights=True, image="111111111111.dkr.ecr.us-east-1.amazonaws.com/p:1")


def test_a_runtime_without_a_streamer_is_refused_and_those_that_have_one_are_named() -> None:
    made = plan(catalog=having("0.28.0"), weights_by="stream", vllm="0.19.0", **PAIR)

    assert codes(made, "error") == ["runtime-without-streamer"]
    refused = finding(made, "runtime-without-streamer")
    assert "vLLM 0.19.0 is not known to contain the Run:ai model streamer" in refused.message
    assert refused.fix.startswith("use --vllm 0.28.0, or leave --weights-by stream out")


def test_our_own_image_is_held_to_the_same_for_it_is_from_the_runtimes() -> None:
    own = "111111111111.dkr.ecr.us-east-1.amazonaws.com/peagle-chat:0.19.0-gpu-abc"
    made = plan(catalog=having("0.28.0"), weights_by="stream", vllm="0.19.0", image=own, **PAIR)

    assert "runtime-without-streamer" in codes(made, "error")


def test_where_no_runtime_has_one_the_mount_is_the_way() -> None:
    made = plan(catalog=having(), weights_by="stream", **PAIR)

    assert finding(made, "runtime-without-streamer").fix.startswith("leave --weights-by stream out")


def test_which_runtimes_have_one_is_data_with_date_and_source() -> None:
    facts = [runtime.streamer for runtime in load_catalog().runtimes.runtimes if runtime.streamer]

    assert facts, "nobody could stream"
    assert all(fact.package.startswith("runai-model-streamer") for fact in facts)
    assert all(fact.source for fact in facts)


def test_the_role_that_reads_the_buckets_is_told_what_it_needs() -> None:
    said = finding(streamed(drafter="s3://heads/chat/"), "weights-streamed")

    assert said.level == "note"
    assert "17.0 GB from s3://bucket/chat/target/ and s3://heads/chat/" in said.message
    assert "s3:ListBucket and s3:GetObject on bucket and heads, in us-east-1" in said.fix


def test_only_what_is_streamed_counts() -> None:
    said = finding(streamed(drafter="me/head"), "weights-streamed")

    assert "reads 16.0 GB from s3://bucket/chat/target/ at" in said.message


def test_the_engine_asks_s3_in_the_endpoints_region_and_keeps_room_on_the_host() -> None:
    made = streamed(instance_type="ml.g5.12xlarge")

    assert made.environment["AWS_DEFAULT_REGION"] == made.region == "us-east-1"
    gpus = made.fit.tensor_parallel_size
    assert gpus > 1
    buffer = int(made.environment["RUNAI_STREAMER_MEMORY_LIMIT"])
    assert buffer * gpus == 4 * 2**30, "a quarter of 16 GiB, for all"
    assert "all GPUs" in str(because(made, "RUNAI_STREAMER_MEMORY_LIMIT"))


def test_the_engine_is_given_the_time_to_read_s3() -> None:
    one = streamed(instance_type="ml.g6e.xlarge", region="eu-west-1")
    # 17 GB at 100 MB/s, 600 s to compile; SageMaker itself copies nothing.
    assert (one.download_timeout_seconds, one.startup_timeout_seconds) == (60, 780)
    assert because(one, "download_timeout_seconds") == (
        "SageMaker copies no weights; the engine streams them"
    )
    several = streamed(instance_type="ml.g5.12xlarge")
    assert several.startup_timeout_seconds > one.startup_timeout_seconds, "each GPU reads all"


def test_another_load_format_of_the_catalogue_gives_way() -> None:
    target = CATALOG.targets["acme/chat"]
    (setting, *_) = target.engine_arguments
    own = setting.model_copy(
        update={"name": "load-format", "value": "fastsafetensors", "gpu_architectures": ()}
    )
    catalog = having("0.28.0")
    changed = {**catalog.targets, target.id: target.model_copy(update={"engine_arguments": (own,)})}
    catalog = catalog.model_copy(update={"targets": changed})

    mounted = plan(catalog=catalog, **PAIR)
    made = plan(catalog=catalog, weights_by="stream", **PAIR)

    assert mounted.environment["SM_VLLM_LOAD_FORMAT"] == "fastsafetensors"
    assert made.environment["SM_VLLM_LOAD_FORMAT"] == "runai_streamer"


def test_such_a_plan_can_be_kept_in_a_file(tmp_path: Path) -> None:
    made = streamed()
    file = tmp_path / "plan.json"
    file.write_bytes(plan_bytes(made))

    assert read_plan(file) == made


def test_a_file_whose_engine_could_not_stream_is_refused() -> None:
    made = streamed()
    arguments = tuple(
        "auto" if word == "runai_streamer" else word for word in made.engine_arguments
    )
    environment = {**made.environment, "SM_VLLM_LOAD_FORMAT": "auto"}
    edited = made.model_copy(update={"environment": environment, "engine_arguments": arguments})
    document = plan_document(edited)

    with pytest.raises(PlanFileError, match="'engine_arguments' and 'target' disagree"):
        plan_from({**document, "digest": digest(document)}, "plan.json")


def test_the_words_that_make_the_plan_again_ask_for_the_stream() -> None:
    made = make_plan(
        Options(pair="tiny", weights_by="stream", model_source="s3://models/tiny/target/"),
        load_catalog(),
    )

    words = plan_arguments(made)

    assert words[words.index("--weights-by") + 1] == "stream"
    assert words[words.index("--model-source") + 1] == "s3://models/tiny/target/"
