"""Collecting a warm start on AWS: the plan, the place of the artifact, and failures."""

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from peagle import warm as warming
from peagle.aws.errors import AccessDenied, Missing
from peagle.errors import CloudError, EngineError, NotProved, PeagleError, Refused
from peagle.planning.plan import Mount, Plan, Weights
from peagle.warm import PAUSES, CollectedWarmStart, WarmReply
from tests.packed import KEY
from tests.support import raises_code
from tests.unit.aws.cloud import service_error
from tests.unit.aws.network import interrupting, refusing
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import World

PREFIX = "s3://models/pair/"
TARGET = ("pair/target/config.json", "pair/target/model.safetensors")
DRAFTER = ("pair/drafter/config.json", "pair/drafter/model.safetensors")


def in_s3(**changes: Any) -> Plan:
    """A pair whose weights `peagle weights sync` has copied."""
    plan = a_plan()

    def weights(folder: str) -> Weights:
        return Weights(
            kind="s3", location=f"{PREFIX}{folder}/", engine_path=f"/opt/ml/model/{folder}"
        )

    return plan.model_copy(
        update={
            "target": plan.target.model_copy(update={"weights": weights("target")}),
            "drafter": plan.drafter.model_copy(update={"weights": weights("drafter")}),
            "mounts": (Mount(channel=None, s3_uri=PREFIX),),
            **changes,
        }
    )


@pytest.fixture
def stocked(world: World) -> World:
    """An account with the pair in S3."""
    for key in (*TARGET, *DRAFTER):
        world.cloud.put("models", key, b"{}")
    return world


def collected(world: World) -> CollectedWarmStart:
    plan = warming.collecting_plan(in_s3())
    place = warming.find_weights_prefix(plan)
    preflight = world.preflight(plan)
    return warming.collect_on_aws(world.context(world.new(plan.name)), preflight, place)


def warm_keys(world: World) -> list[str]:
    return sorted(key for key in world.cloud.buckets["models"] if "/warm/" in key)


def test_the_collecting_plan_runs_the_same_engine_once() -> None:
    plan = in_s3(instance_count=3, price_per_hour_usd=6.0)
    collecting = warming.collecting_plan(plan)
    assert collecting.name == "peagle-pair-warm"
    assert collecting.instance_count == 1
    assert collecting.price_per_hour_usd == 2.0
    assert collecting.environment == {**plan.environment, "PEAGLE_WARM": "collect"}
    changed = {"name", "instance_count", "price_per_hour_usd", "environment"}
    assert collecting.model_dump(exclude=changed) == plan.model_dump(exclude=changed)


HUB = Weights(kind="hub", location="a/target", engine_path="a/target")


@pytest.mark.parametrize("plan", [
    a_plan(),
    a_plan(Path("/tmp/head")),
    in_s3(target=in_s3().target.model_copy(update={"weights": HUB})),
    in_s3(mounts=(*in_s3().mounts, Mount(channel="drafter", s3_uri="s3://other/"))),
], ids=["hub", "uploaded", "half of it", "two prefixes"])  # fmt: skip
def test_weights_in_several_prefixes_name_the_sync_command(plan: Plan) -> None:
    with raises_code("weights-not-in-s3", Refused) as caught:
        warming.find_weights_prefix(plan)
    assert caught.value.command == ("peagle", "weights", "sync", plan.pair, "s3://BUCKET/PREFIX")


def test_streamed_weights_are_refused() -> None:
    with raises_code("weights-streamed", Refused):
        warming.find_weights_prefix(in_s3(mounts=()))


def test_the_artifact_is_stored_beside_the_weights_manifest_last(stocked: World) -> None:
    stored = collected(stocked)
    there = stocked.cloud.buckets["models"]
    assert there[f"pair/warm/{KEY}.tar.gz"]["Content"] == stocked.cloud.packed.content
    assert there[f"pair/warm/{KEY}.json"]["Content"] == stocked.cloud.packed.document
    assert list(there)[-2:] == [f"pair/warm/{KEY}.tar.gz", f"pair/warm/{KEY}.json"]
    assert stored.uri == f"{PREFIX}warm/{KEY}.tar.gz"
    assert stored.others == {}
    assert stocked.cloud.endpoints == {}
    assert stored.seconds > 0
    states = [progress.state for progress in stocked.shown]
    assert states.index("Proving") < states.index("Packing") < states.index("Fetching")


def test_a_second_collection_replaces_its_artifact_and_reports_others(stocked: World) -> None:
    other = "b" * 32
    stocked.cloud.put("models", f"pair/warm/{other}.tar.gz", b"12345")
    stocked.cloud.put("models", f"pair/warm/{other}.json", b"{}")
    collected(stocked)
    stocked.cloud.packed.content = b"compiled again"
    stored = collected(stocked)
    archive = stocked.cloud.buckets["models"][f"pair/warm/{KEY}.tar.gz"]
    assert archive["Content"] == b"compiled again"
    assert stored.others == {other: 7}
    assert len(warm_keys(stocked)) == 4


def replace_artifact(stocked: World) -> None:
    """Collect once; the next collection gets other content."""
    collected(stocked)
    stocked.cloud.packed.content = b"compiled again"


@pytest.mark.parametrize("upload", [1, 2], ids=["after the archive", "after the manifest"])
def test_an_interrupted_replacement_leaves_no_old_manifest(stocked: World, upload: int) -> None:
    replace_artifact(stocked)
    stocked.cloud.after = interrupting("upload_file", upload)
    with pytest.raises(KeyboardInterrupt):
        collected(stocked)
    there = stocked.cloud.buckets["models"]
    assert there[f"pair/warm/{KEY}.tar.gz"]["Content"] == b"compiled again"
    manifest = there.get(f"pair/warm/{KEY}.json", {"Content": None})["Content"]
    assert manifest == (None if upload == 1 else stocked.cloud.packed.document)


def test_an_artifact_is_replaced_without_permission_to_delete(stocked: World) -> None:
    replace_artifact(stocked)
    stocked.cloud.before = refusing("delete_object", "AccessDenied", "Access Denied")
    collected(stocked)
    manifest = stocked.cloud.buckets["models"][f"pair/warm/{KEY}.json"]
    assert manifest["Content"] == stocked.cloud.packed.document
    assert stocked.cloud.calls.count("delete_object") == 1


def test_throttled_requests_are_retried(stocked: World) -> None:
    throttled = service_error("ThrottlingException", "Rate exceeded", "InvokeEndpoint")
    stocked.cloud.packed.faults = [throttled, None, throttled, WarmReply(500, b"busy packing")]
    before = stocked.cloud.now
    collected(stocked)
    assert len(warm_keys(stocked)) == 2
    assert stocked.cloud.now - before >= PAUSES[0] + PAUSES[0] + PAUSES[1]


FAULTS: list[tuple[list[WarmReply | BaseException | None], type[PeagleError], str]] = [
    ([None, *[WarmReply(200, b"short")] * 9], EngineError, "incomplete-response"),
    ([WarmReply(409, b'{"error": "nothing was compiled"}')], Refused, "nothing-compiled"),
    ([EndpointConnectionError(endpoint_url="x")] * 9, CloudError, "unreachable"),
    ([None, service_error("AccessDeniedException", "no", "I")], AccessDenied,
     "AccessDeniedException"),
    ([None, service_error("ValidationException", "Endpoint x not found", "I")], Missing,
     "ValidationException"),
]  # fmt: skip


@pytest.mark.parametrize(("faults", "kind", "code"), FAULTS, ids=lambda value: str(value)[:30])
def test_a_failed_fetch_stores_nothing(
    stocked: World,
    faults: list[WarmReply | BaseException | None],
    kind: type[PeagleError],
    code: str,
) -> None:
    stocked.cloud.packed.faults = list(faults)
    with raises_code(code, kind):
        collected(stocked)
    assert warm_keys(stocked) == []


def test_nothing_is_collected_from_an_unproved_engine(stocked: World) -> None:
    stocked.cloud.engine.acceptance = 1.0
    with pytest.raises(NotProved):
        collected(stocked)
    assert stocked.cloud.packed.requests == []
    assert warm_keys(stocked) == []


def test_a_read_only_prefix_is_detected_first(stocked: World) -> None:
    place = warming.find_weights_prefix(in_s3())
    warming.check_writable(stocked.aws, place)
    assert stocked.cloud.calls == ["create_multipart_upload", "abort_multipart_upload"]
    stocked.cloud.before = refusing("create_multipart_upload", "AccessDenied", "Access Denied")
    with raises_code("AccessDenied", AccessDenied) as caught:
        warming.check_writable(stocked.aws, place)
    assert "s3:PutObject" in caught.value.message
