"""Checks of weights in S3: incomplete, of another pair, or missing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws, translated
from peagle.errors import CloudError
from peagle.findings import Finding
from peagle.planning.plan import Mount, Plan, Weights
from peagle.weights.mounted import mounted_findings
from peagle.weights.sync import PairWeights, plan_sync
from tests.unit.aws.cloud import service_error
from tests.unit.aws.plans import a_plan
from tests.unit.aws.syncing import PLACE, Calls, apply, folder_weights, index_of, put, write_model
from tests.unit.aws.world import World

OURS = PairWeights({}, "a/target+a/head")


def stored_plan(target: str, drafter: str | None = None, *mounts: str, **changes: Any) -> Plan:
    """A plan whose weights are in S3; mounted at ``mounts``, else streamed."""

    def weights(location: str) -> Weights:
        path = "/opt/ml/model" if mounts else location
        return Weights(kind="s3", location=location, engine_path=path)

    plan = a_plan()
    update: dict[str, Any] = {
        "target": plan.target.model_copy(update={"weights": weights(target)}),
        "mounts": tuple(Mount(channel=None, s3_uri=uri) for uri in mounts),
    }
    if drafter is not None:
        update["drafter"] = plan.drafter.model_copy(update={"weights": weights(drafter)})
    return plan.model_copy(update=update | changes)


PAIR = stored_plan("s3://models/pair/target/", "s3://models/pair/drafter/", "s3://models/pair/")
STREAMED = stored_plan("s3://models/pair/target/", "s3://models/pair/drafter/")


@pytest.fixture
def copied(aws: Aws, tmp_path: Path) -> Aws:
    """A complete pair, as `peagle weights sync` leaves it."""
    return bring_pair(aws, tmp_path, OURS)


def bring_pair(aws: Aws, tmp_path: Path, pair: PairWeights) -> Aws:
    weights = {part: folder_weights(write_model(tmp_path / part)) for part in ("target", "drafter")}
    apply(aws, plan_sync(aws, PLACE, replace(pair, weights=weights)))
    return aws


def delete(aws: Aws, key: str) -> None:
    aws.call("s3", "delete_object", Bucket="models", Key=key)


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.thorough
@pytest.mark.parametrize("plan", [PAIR, STREAMED], ids=["mounted", "streamed"])
def test_a_complete_pair_needs_few_calls_and_has_no_findings(copied: Aws, plan: Plan) -> None:
    calls = Calls(copied)
    assert mounted_findings(copied, plan) == ()
    assert set(dict(calls.made)) <= {"head_bucket", "get_object", "list_objects_v2"}
    assert len(calls.made) <= 6


TARGET, DRAFTER = "s3://models/pair/target/", "s3://models/pair/drafter/"
NAMES_VOCABULARY = PAIR.model_copy(
    update={"environment": {**PAIR.environment, "TIKTOKEN_ENCODINGS_BASE": "/opt/ml/model"}}
)
MANIFEST, WARM = PLACE.manifest_key, f"pair/warm/{'0a' * 16}"


def mounted_at(uri: str) -> Plan:
    """A plan whose target is at a mounted prefix."""
    return stored_plan(uri, None, uri)


@pytest.mark.thorough
@pytest.mark.parametrize(("objects", "plan", "codes"), [
    ({"pair/target/model.safetensors": None}, PAIR, ["weights-half"]),
    ({"pair/target/model.safetensors": None}, STREAMED, ["weights-half"]),
    ({"pair/drafter/config.json": b"{}"}, PAIR, ["weights-half"]),
    ({}, NAMES_VOCABULARY, ["vocabulary-not-there"]),
    ({"pair/target/o200k_base.tiktoken": b"x"}, NAMES_VOCABULARY, []),
    ({MANIFEST: b"{"}, PAIR, []),
    ({MANIFEST: b"{", "pair/target/config.json": None}, PAIR, ["weights-half"]),
    ({}, mounted_at("s3://models/empty/"), ["weights-missing"]),
    ({}, mounted_at("s3://models/pair/"), ["weights-half"]),
    ({"pair/target/": b""}, PAIR, ["folder-keys"]),
    ({"pair/notes.txt": b"x"}, PAIR, ["foreign-objects"]),
    ({f"{WARM}.tar.gz": b"x", f"{WARM}.json": b"x"}, PAIR, []),
    ({"pair/warm/notes.txt": b"x"}, PAIR, ["foreign-objects"]),
])  # fmt: skip
def test_what_is_wrong_at_a_prefix_is_found(
    copied: Aws, objects: dict[str, bytes | None], plan: Plan, codes: list[str]
) -> None:
    for key, body in objects.items():
        delete(copied, key) if body is None else put(copied, key, body)
    findings = mounted_findings(copied, plan)
    assert [finding.code for finding in findings] == codes
    for finding in findings:
        assert finding.level == ("warning" if finding.code == "foreign-objects" else "error")


@pytest.mark.thorough
def test_the_sync_command_names_the_users_own_source(aws: Aws, tmp_path: Path) -> None:
    bring_pair(aws, tmp_path, replace(OURS, named=frozenset({"drafter"})))
    delete(aws, "pair/drafter/config.json")
    finding = only(mounted_findings(aws, PAIR))
    assert finding.command is not None
    assert finding.command[-3:] == ("--drafter-only", "--drafter-from", str(tmp_path / "drafter"))


@pytest.mark.thorough
def test_an_interrupted_copy_is_refused(aws: Aws, tmp_path: Path) -> None:
    """All of the target is there, but the last file is not verified."""
    calls = Calls(aws)

    def break_off(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "put_object" and parameters["Key"] == "pair/drafter/config.json":
            raise CloudError("S3 is away")

    calls.before = break_off
    with pytest.raises(CloudError):
        bring_pair(aws, tmp_path, OURS)
    calls.before = lambda operation, parameters: None
    weights = folder_weights(tmp_path / "target")
    apply(aws, plan_sync(aws, PLACE, replace(OURS, weights={"target": weights})))
    assert "config.json" in only(mounted_findings(aws, PAIR)).message
    for file in (tmp_path / "drafter").iterdir():
        put(aws, f"pair/drafter/{file.name}", file.read_bytes())
    assert "has not finished" in only(mounted_findings(aws, PAIR)).message


@pytest.mark.thorough
def test_a_manifest_of_another_pair_is_refused(aws: Aws, tmp_path: Path) -> None:
    bring_pair(aws, tmp_path, PairWeights({}, "b/other+b/head"))
    *_, last = findings = mounted_findings(aws, PAIR)
    assert {finding.code for finding in findings} == {"weights-of-another-pair"}
    assert (last.level, "is from b/other+b/head" in last.message) == ("error", True)


@pytest.mark.thorough
def test_without_a_manifest_an_incomplete_model_is_refused(aws: Aws, tmp_path: Path) -> None:
    plan = stored_plan("s3://models/plain/", None, "s3://models/plain/")
    folder = write_model(tmp_path / "plain")
    for file in folder.iterdir():
        put(aws, f"plain/{file.name}", file.read_bytes())
    assert mounted_findings(aws, plan) == ()
    shards = {"w": "model.safetensors", "v": "model-2.safetensors"}
    put(aws, "plain/model.safetensors.index.json", index_of(shards))
    finding = only(mounted_findings(aws, plan))
    assert (finding.level, finding.code) == ("error", "weights-half")
    assert "model-2.safetensors" in finding.message
    delete(aws, "plain/config.json")
    assert "config.json" in only(mounted_findings(aws, plan)).message


def test_a_bucket_of_another_region_is_refused(aws: Aws) -> None:
    west = {"LocationConstraint": "eu-west-1"}
    aws.in_region("eu-west-1").call(
        "s3", "create_bucket", Bucket="west", CreateBucketConfiguration=west
    )
    finding = only(mounted_findings(aws, stored_plan("s3://west/x/", None, "s3://west/x/")))
    assert (finding.level, finding.code) == ("error", "weights-elsewhere")
    assert "--region eu-west-1" in finding.fix


@pytest.mark.thorough
@pytest.mark.parametrize("denied", ["head_bucket", "list_objects_v2"])
def test_without_permissions_there_is_a_warning(
    copied: Aws, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:

    def denying(name: str) -> None:
        original = getattr(copied, name)

        def ask(service: str, operation: str, *more: Any, **parameters: Any) -> Any:
            if operation == denied:
                with translated("s3", "us-east-1"):
                    raise service_error("AccessDenied", "Access Denied", operation)
            return original(service, operation, *more, **parameters)

        monkeypatch.setattr(copied, name, ask)

    denying("call")
    denying("items")
    finding = only(mounted_findings(copied, PAIR))
    assert (finding.level, finding.code) == ("warning", "weights-not-seen")


def test_deploy_checks_only_weights_in_s3_and_only_before_a_change(
    world: World, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.preflight(a_plan(head))
    assert "list_objects_v2" not in world.cloud.calls
    findings = world.preflight(PAIR).findings
    assert {finding.code for finding in findings} == {"weights-missing"}
    with monkeypatch.context() as patch:
        patch.setattr("peagle.deploy.preflight.mounted_findings", lambda aws, plan: ())
        world.deploy(PAIR)
    assert world.preflight(PAIR).findings == ()
