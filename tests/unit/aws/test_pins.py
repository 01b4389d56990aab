"""What a deploy pins of weights and warm starts in S3, and what happens when that changes."""

import hashlib
import json

import pytest

from peagle.errors import Refused
from peagle.findings import Finding
from peagle.planning.plan import Pins
from peagle.planning.weights import with_pins
from peagle.weights.mounted import pin_plan
from tests.support import raises_code
from tests.unit.aws.network import denied
from tests.unit.aws.test_warming import DRAFTER, TARGET, in_s3
from tests.unit.aws.world import World

MANIFEST = "pair/peagle-weights.json"
WARM = "pair/warm/"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def manifest_with(source: str) -> bytes:
    """A manifest of `peagle weights sync`; ``source`` makes it another one."""
    files = {"config.json": {"size": 2}, "model.safetensors": {"size": 2}}
    folder = {"source": source, "complete": True, "files": files}
    return json.dumps({"format": 1, "folders": {"target": folder, "drafter": folder}}).encode()


FIRST, SECOND = manifest_with("first"), manifest_with("second")


def put_archive(world: World, key: str, content: bytes) -> str:
    """An archive of compiled code with its manifest; its SHA-256."""
    document = json.dumps({"sha256": sha256(content), "size": len(content)})
    world.cloud.put("models", f"{WARM}{key}.tar.gz", content)
    world.cloud.put("models", f"{WARM}{key}.json", document.encode())
    return sha256(content)


@pytest.fixture
def synced(world: World) -> World:
    """An account with a synced pair."""
    for key in (*TARGET, *DRAFTER):
        world.cloud.put("models", key, b"{}")
    world.cloud.put("models", MANIFEST, FIRST)
    return world


def served(world: World) -> dict[str, str]:
    """The variables of the model that the endpoint serves."""
    record = world.saved()
    environment: dict[str, str] = world.cloud.models[record.current.model]["PrimaryContainer"][
        "Environment"
    ]
    return environment


def codes(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(finding.level, finding.code) for finding in findings]


def test_a_deploy_pins_the_manifest_and_the_archives(synced: World) -> None:
    first, two = put_archive(synced, "a" * 32, b"compiled"), put_archive(synced, "b" * 32, b"more")
    synced.deploy(in_s3())
    variables = served(synced)
    assert variables["PEAGLE_WEIGHTS_SHA256"] == sha256(FIRST)
    assert variables["PEAGLE_WARM_SHA256"] == ",".join(sorted((first, two)))
    record = synced.record()
    assert record.current.plan.pins == Pins(weights=sha256(FIRST), warm=tuple(sorted((first, two))))


def test_a_new_archive_is_an_update(synced: World) -> None:
    synced.deploy(in_s3())
    added = put_archive(synced, "a" * 32, b"compiled")
    preflight = synced.preflight(in_s3())
    assert preflight.change == "update"
    assert [(change.setting, change.after) for change in preflight.changes] == [
        ("variable.PEAGLE_WARM_SHA256", added)
    ]


def test_only_the_archives_that_the_user_names_are_pinned(synced: World) -> None:
    put_archive(synced, "a" * 32, b"compiled")
    mine = put_archive(synced, "b" * 32, b"mine")
    plan, findings = pin_plan(synced.aws, with_pins(in_s3(), Pins(warm=(mine,))))
    assert plan.pins.warm == (mine,)
    assert findings == ()


def test_a_damaged_archive_manifest_pins_nothing(synced: World) -> None:
    for key, text in {"a": b"[" * 100_000, "b": b'{"sha256": 1}', "c": b"\xff"}.items():
        synced.cloud.put("models", f"{WARM}{key * 32}.json", text)
    assert pin_plan(synced.aws, in_s3())[0].pins.warm == ()


def test_without_a_manifest_nothing_is_pinned_and_a_note_says_so(synced: World) -> None:
    del synced.cloud.buckets["models"][MANIFEST]
    plan, findings = pin_plan(synced.aws, in_s3())
    assert plan == in_s3()
    assert codes(findings) == [("note", "weights-not-pinned")]


def test_a_manifest_that_changes_under_a_plan_is_an_error(synced: World) -> None:
    before, _ = pin_plan(synced.aws, in_s3())
    synced.cloud.put("models", MANIFEST, SECOND)
    plan, findings = pin_plan(synced.aws, before)
    (finding,) = findings
    assert (finding.level, finding.code) == ("error", "weights-changed")
    assert sha256(FIRST) in finding.message
    assert sha256(SECOND) in finding.message
    assert (finding.command or ())[:2] == ("peagle", "plan")
    assert plan == before


@pytest.mark.parametrize("machine", ["this one", "another"])
def test_manifest_that_changes_under_a_deployment_is_an_error(synced: World, machine: str) -> None:
    synced.deploy(in_s3())
    synced.cloud.put("models", MANIFEST, SECOND)
    if machine == "another":
        synced.forget()
    preflight = synced.preflight(in_s3())
    assert ("error", "weights-changed") in codes(preflight.findings)


def deployed_twice(world: World) -> None:
    """A deployment with a previous revision."""
    world.deploy(in_s3())
    world.deploy(in_s3(environment={**in_s3().environment, "SM_VLLM_DTYPE": "bfloat16"}))


def test_a_rollback_keeps_its_pins(synced: World) -> None:
    put_archive(synced, "a" * 32, b"compiled")
    deployed_twice(synced)
    synced.rollback()
    assert served(synced)["PEAGLE_WEIGHTS_SHA256"] == sha256(FIRST)
    assert "SM_VLLM_DTYPE" not in served(synced)


@pytest.mark.parametrize("now", [SECOND, None], ids=["changed", "gone"])
def test_a_rollback_to_changed_weights_is_refused_before_anything_changes(
    synced: World, now: bytes | None
) -> None:
    deployed_twice(synced)
    if now is None:
        del synced.cloud.buckets["models"][MANIFEST]
    else:
        synced.cloud.put("models", MANIFEST, now)
    before = synced.cloud.calls.count("update_endpoint")
    with raises_code("weights-changed", Refused) as caught:
        synced.rollback()
    assert caught.value.fix
    assert synced.cloud.calls.count("update_endpoint") == before


def test_where_s3_may_not_be_read_the_deployed_pins_stay(synced: World) -> None:
    put_archive(synced, "a" * 32, b"compiled")
    synced.deploy(in_s3())
    synced.cloud.before = denied("get_object", "list_objects_v2")
    assert synced.preflight(in_s3()).change == "nothing"
