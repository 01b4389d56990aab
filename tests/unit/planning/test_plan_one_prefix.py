"""Target and drafter as folders of one prefix: one mount, which every renderer can express."""

from __future__ import annotations

import pytest

from peagle.catalog import load_catalog
from peagle.errors import Unsupported
from peagle.planning import Options, Plan, make_plan
from peagle.render import render
from peagle.render.formats import cloudformation
from peagle.render.plan_file import plan_bytes, read_plan

TARGET = "s3://models/pair/target/"


def _plan(target: str | None, drafter: str) -> Plan:
    options = Options(pair="tiny", model_source=target, drafter=drafter)
    return make_plan(options, load_catalog())


def test_the_layout_of_weights_sync_needs_one_mount() -> None:
    plan = _plan(TARGET, "s3://models/pair/drafter")

    assert [(mount.channel, mount.s3_uri) for mount in plan.mounts] == [(None, "s3://models/pair/")]
    assert plan.environment["SM_VLLM_MODEL"] == "/opt/ml/model/target"
    assert '"/opt/ml/model/drafter"' in plan.environment["SM_VLLM_SPECULATIVE_CONFIG"]


def test_cloudformation_renders_one_mount() -> None:
    container = cloudformation.template(_plan(TARGET, "s3://models/pair/drafter/"))["Resources"][
        "Model"
    ]["Properties"]["PrimaryContainer"]

    assert container["ModelDataSource"]["S3DataSource"]["S3Uri"] == "s3://models/pair/"
    assert "AdditionalModelDataSources" not in container


@pytest.mark.parametrize(
    "drafter", ["s3://models/other/drafter/", "s3://models/pair/head/", "s3://others/pair/drafter/"]
)
def test_other_prefixes_need_two_mounts(drafter: str) -> None:
    plan = _plan(TARGET, drafter)

    assert [mount.s3_uri for mount in plan.mounts] == [TARGET, drafter]
    assert plan.environment["SM_VLLM_MODEL"] == "/opt/ml/model"
    with pytest.raises(Unsupported):
        render("cloudformation", plan, load_catalog())


def test_a_drafter_alone_is_mounted_alone() -> None:
    plan = make_plan(Options(pair="gpt-oss-20b", drafter="s3://models/pair/drafter/"),
                     load_catalog())  # fmt: skip

    assert [mount.s3_uri for mount in plan.mounts] == ["s3://models/pair/drafter/"]
    assert '"/opt/ml/model"' in plan.environment["SM_VLLM_SPECULATIVE_CONFIG"]


def test_the_plan_survives_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = _plan(TARGET, "s3://models/pair/drafter/")
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    file.write_bytes(plan_bytes(plan))

    assert read_plan(file) == plan
