"""Records: found by name, locked by one command, and never guessed at when damaged."""

from pathlib import Path

import pytest

from peagle.deploy import records
from peagle.deploy.state import Deployment, Resource
from peagle.errors import NotFound, UserError
from peagle.store import write_json
from tests.support import raises_code
from tests.unit.aws.plans import a_plan, a_revision


def _record(name: str = "peagle-pair", scope: str = "123456789012", region: str = "us-east-1"):  # type: ignore[no-untyped-def]
    pending = a_revision(a_plan())
    return Deployment(
        name=name, scope=scope, account="123456789012", region=region, pending=pending,
        resources=(Resource(type="Model", name="m", revision="0a1b2c3d", keys=("ü/1",)),),
    )  # fmt: skip


def test_a_record_of_a_newer_version_is_left_as_it_is(own_home: Path) -> None:
    record = _record()
    path = records.record_path(record.scope, record.region, record.name)
    write_json(path, record.model_dump(mode="json") | {"format": 4, "unknown": 1})
    before = path.read_bytes()
    with raises_code("record-damaged", UserError):
        records.find_record(record.name)
    assert path.read_bytes() == before


def test_names_of_the_sandbox_are_separate(own_home: Path) -> None:
    records.save(_record("mine"))
    records.save(_record("toy", scope="sandbox"))
    assert records.deployment_names() == ("mine",)
    assert records.deployment_names("sandbox") == ("toy",)
    for place in (("toy",), ("mine", "sandbox")):
        with raises_code("no-such-deployment", NotFound) as elsewhere:
            records.find_record(*place)
        assert "--sandbox" in elsewhere.value.fix


def test_an_unknown_name_has_suggestions(own_home: Path) -> None:
    records.save(_record("peagle-tiny"))
    with pytest.raises(NotFound) as unknown:
        records.find_record("peagle-tinny")
    assert "peagle-tiny" in unknown.value.fix
    assert unknown.value.exit_code == 2


def test_a_name_in_two_regions_is_ambiguous(own_home: Path) -> None:
    records.save(_record())
    records.save(_record(region="eu-west-1"))
    with raises_code("ambiguous-name", records.Ambiguous) as caught:
        records.find_record("peagle-pair")
    assert "eu-west-1" in caught.value.message
    assert records.find_record("peagle-pair", region="eu-west-1").region == "eu-west-1"
    with pytest.raises(NotFound):
        records.find_record("peagle-pair", region="us-west-2")
