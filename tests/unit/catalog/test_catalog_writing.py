"""Tables are written back into their YAML files: unchanged lines stay identical."""

from __future__ import annotations

import difflib
import stat
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.loading import validate_file
from peagle.catalog.tables import Instance, InstanceTable, Price, Runtime, RuntimeTable
from peagle.catalog.writing import (
    Tables,
    new_texts,
    refuse_unwritable,
    rewritten,
    write_texts,
)
from peagle.data import data_folder
from peagle.errors import UserError
from tests.support import raises_code

BUNDLED = data_folder("model_catalog")
ALL_INSTANCES = (BUNDLED / "instances.yaml").read_text(encoding="utf-8")
RUNTIMES = (BUNDLED / "runtimes.yaml").read_text(encoding="utf-8")
CATALOG = load_catalog()
TODAY = date(2026, 11, 30)
NEW = Instance(
    type="ml.g6e.4800xlarge", gpu="L40S", gpu_count=64, gpu_memory_mib=45776,
    gpu_architecture="sm_89", vcpus=768, memory_gib=6144, quota_default=0.0,
)  # fmt: skip


def a_price(usd: float = 7.5, region: str = "us-east-1") -> Price:
    return Price(usd_per_hour=usd, region=region, date=TODAY, source="AWS Pricing API")


def parsed(text: str, model: type[Any]) -> Any:
    found, problems = validate_file(Path("table.yaml"), model, text)
    assert problems == []
    return found


def small_table(text: str) -> str:
    """The head of the table of instances, and five of its entries: the first has an anchor."""
    head, *entries = text.split("\n  - type: ")
    chosen = (entries[number] for number in (0, 1, 20, 35, -1))
    return "\n  - type: ".join((head, *chosen))


INSTANCES = small_table(ALL_INSTANCES)
TABLE: InstanceTable = parsed(INSTANCES, InstanceTable)


def with_instances(*changed: Instance, table: InstanceTable = TABLE) -> InstanceTable:
    """The table with these instances in place of those of their type, or at the end."""
    instances = {one.type: one for one in table.instances}
    instances |= {one.type: one for one in changed}
    return table.model_copy(update={"instances": tuple(instances.values())})


def written(desired: InstanceTable) -> str:
    """The file of the small table with ``desired``, after checking that it loads."""
    text = rewritten(INSTANCES, TABLE, desired)
    assert parsed(text, InstanceTable) == desired
    return text


def written_runtimes(**changed: Any) -> str:
    """The file of runtimes with these changes, after checking that it loads."""
    desired = CATALOG.runtimes.model_copy(update=changed)
    text = rewritten(RUNTIMES, CATALOG.runtimes, desired)
    assert parsed(text, RuntimeTable) == desired
    return text


def differing(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.thorough
def test_an_equal_table_does_not_change_the_file() -> None:
    assert rewritten(ALL_INSTANCES, CATALOG.instances, CATALOG.instances) == ALL_INSTANCES
    assert rewritten(RUNTIMES, CATALOG.runtimes, CATALOG.runtimes) == RUNTIMES


@pytest.mark.thorough
def test_a_change_of_every_bundled_entry_changes_its_line_only() -> None:
    bundled = CATALOG.instances
    more = (one.model_copy(update={"vcpus": one.vcpus + 1}) for one in bundled.instances)
    desired = with_instances(*more, table=bundled)

    text = rewritten(ALL_INSTANCES, bundled, desired)

    changed = differing(ALL_INSTANCES, text)
    assert len(changed) == 2 * len(bundled.instances)
    assert {line[1:].split(":")[0] for line in changed} == {"    vcpus"}
    assert parsed(text, InstanceTable) == desired


@pytest.mark.parametrize("instance", TABLE.instances, ids=lambda one: one.type)
def test_one_entry_changes_alone(instance: Instance) -> None:
    text = written(with_instances(instance.model_copy(update={"vcpus": instance.vcpus + 1})))

    assert differing(INSTANCES, text) == [
        f"-    vcpus: {instance.vcpus}",
        f"+    vcpus: {instance.vcpus + 1}",
    ]


@pytest.mark.parametrize("instance", TABLE.instances, ids=lambda one: one.type)
def test_a_new_price_leaves_the_other_sources_alone(instance: Instance) -> None:
    text = written(with_instances(instance.model_copy(update={"prices": (a_price(),)})))

    assert len(differing(INSTANCES, text)) <= 8


def test_every_price_of_two_regions() -> None:
    prices = (a_price(1.25), a_price(12.0, "eu-west-1"))
    desired = with_instances(
        *(one.model_copy(update={"prices": prices}) for one in TABLE.instances)
    )

    text = written(desired)

    assert "quoted" not in text.partition("instances:")[2]
    assert all(len(line) <= 100 for line in text.splitlines())
    comments = [line for line in INSTANCES.splitlines() if line.lstrip().startswith("#")]
    assert [line for line in text.splitlines() if line.lstrip().startswith("#")] == comments
    assert rewritten(text, desired, desired) == text


def test_a_second_refresh_changes_only_what_is_new() -> None:
    first = with_instances(
        *(one.model_copy(update={"prices": (a_price(),)}) for one in TABLE.instances)
    )
    once = rewritten(INSTANCES, TABLE, first)
    (head, *rest) = first.instances
    second = first.model_copy(
        update={"instances": (head.model_copy(update={"prices": (a_price(9.0),)}), *rest)}
    )

    twice = rewritten(once, first, second)

    assert len(differing(once, twice)) == 2
    assert parsed(twice, InstanceTable) == second


@pytest.mark.parametrize("position", [0, 2, len(TABLE.instances)])
def test_a_new_type_is_inserted_at_its_position(position: int) -> None:
    instances = list(TABLE.instances)
    instances.insert(position, NEW.model_copy(update={"prices": (a_price(),)}))
    desired = TABLE.model_copy(update={"instances": tuple(instances)})

    text = written(desired)

    assert all(line.startswith("+") for line in differing(INSTANCES, text))
    assert text.endswith("\n")


def test_an_entry_and_a_key_can_be_removed() -> None:
    first, second, *rest = TABLE.instances
    desired = TABLE.model_copy(
        update={"instances": (first, second.model_copy(update={"quota_code": None}), *rest[1:])}
    )

    text = written(desired)

    assert all(line.startswith("-") for line in differing(INSTANCES, text))


def test_date_and_source_of_the_table_change() -> None:
    desired = TABLE.model_copy(update={"checked": TODAY, "source": "AWS: of today"})

    text = written(desired)

    assert len(differing(INSTANCES, text)) == 4
    assert parsed(text, InstanceTable).checked == TODAY


def a_runtime(version: str, **changed: Any) -> Runtime:
    newest = CATALOG.runtimes.runtimes[-1]
    named = {"vllm": version, "tag": f"{version}-gpu-py312-cu130-ubuntu24.04-sagemaker"}
    plain = {"cpu": "untried", "cpu_note": None, "built": None}
    return newest.model_copy(update={**plain, **named, **changed})


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["0.18.0", "0.28.1", "0.31.0"])
def test_a_new_version_is_inserted_in_order(version: str) -> None:
    from peagle.vllm.versions import parse

    runtimes = (*CATALOG.runtimes.runtimes, a_runtime(version))
    text = written_runtimes(runtimes=tuple(sorted(runtimes, key=lambda one: parse(one.vllm))))

    if version != "0.18.0":
        assert all(line.startswith("+") for line in differing(RUNTIMES, text))
        assert len(differing(RUNTIMES, text)) == 6


@pytest.mark.thorough
def test_a_region_that_is_added_everywhere() -> None:
    runtimes = tuple(
        one.model_copy(update={"regions": tuple(sorted((*one.regions, "eu-north-9")))})
        if one.regions
        else one
        for one in CATALOG.runtimes.runtimes
    )
    accounts = {**CATALOG.runtimes.accounts, "eu-north-9": "111122223333"}
    text = written_runtimes(runtimes=runtimes, accounts=accounts)

    assert text.count("- eu-north-9") == 2, "each list is written once, with an anchor"
    comments = [line for line in RUNTIMES.splitlines() if line.lstrip().startswith("#")]
    assert [line for line in text.splitlines() if line.lstrip().startswith("#")] == comments


@pytest.mark.thorough
def test_a_version_is_added_to_regions() -> None:
    by_version = {one.vllm: one for one in CATALOG.runtimes.runtimes}
    everywhere = by_version["0.28.0"].regions
    by_version["0.29.0"] = by_version["0.29.0"].model_copy(update={"regions": everywhere})
    text = written_runtimes(runtimes=tuple(by_version.values()))

    assert differing(RUNTIMES, text) == ["-    regions: *commercial", "+    regions: *all"]


@pytest.mark.thorough
def test_the_version_with_the_anchor_gets_another_list() -> None:
    by_version = {one.vllm: one for one in CATALOG.runtimes.runtimes}
    by_version["0.23.0"] = by_version["0.23.0"].model_copy(update={"regions": ("us-east-1",)})

    text = written_runtimes(runtimes=tuple(by_version.values()))

    assert text.count("regions: &commercial") == 1, "the next version with the list gets the anchor"


@pytest.mark.thorough
def test_a_tag_and_an_account_change() -> None:
    by_version = {one.vllm: one for one in CATALOG.runtimes.runtimes}
    by_version["0.24.0"] = by_version["0.24.0"].model_copy(update={"tag": "0.24.0-again"})
    accounts = {**CATALOG.runtimes.accounts, "us-west-2": "000011112222"}
    text = written_runtimes(runtimes=tuple(by_version.values()), accounts=accounts)

    assert len(differing(RUNTIMES, text)) == 4


def tables(**changed: Any) -> tuple[Tables, Tables]:
    before = Tables(CATALOG.runtimes, CATALOG.instances)
    return before, Tables(**{**vars(before), **changed})


@pytest.mark.thorough
def test_only_what_changed_is_written_and_can_be_loaded(tmp_path: Path) -> None:
    desired = with_instances(NEW, table=CATALOG.instances)
    before, after = tables(instances=desired)

    texts = new_texts(tmp_path, before, after)
    written = write_texts(tmp_path / "made" / "here", texts)

    assert [path.name for path in written] == ["instances.yaml"]
    assert [path.name for path in written[0].parent.iterdir()] == ["instances.yaml"]
    loaded = load_catalog(written[0].parent)
    assert loaded.instances == desired
    assert loaded.runtimes == CATALOG.runtimes


def test_the_mode_of_a_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "instances.yaml").write_text(INSTANCES)
    (tmp_path / "instances.yaml").chmod(0o640)

    write_texts(tmp_path, {"instances.yaml": INSTANCES})

    assert stat.S_IMODE((tmp_path / "instances.yaml").stat().st_mode) == 0o640


def test_comments_order_and_style_of_a_users_file_are_kept(tmp_path: Path) -> None:
    text = """\
# Ours.
source: mine # by hand
instances:
  # The small one.
  - {type: ml.g4dn.xlarge, gpu: T4, gpu_memory_mib: 16_384, gpu_count: 1,
     gpu_architecture: sm_75, vcpus: 4, memory_gib: 16}
  # The large one.
  - type: 'ml.g5.xlarge' # quoted
    gpu_count: 1
    gpu: A10G
    gpu_memory_mib: 22888
    gpu_architecture: sm_86
    vcpus: 4
    memory_gib: 16

checked: 2026-11-20
"""
    (tmp_path / "instances.yaml").write_text(text)
    mine = load_catalog(tmp_path).instances
    small, large = mine.instances
    changed = large.model_copy(update={"vcpus": 5, "prices": (a_price(),)})
    desired = mine.model_copy(update={"instances": (small, changed)})

    texts = new_texts(tmp_path, Tables(CATALOG.runtimes, mine), Tables(CATALOG.runtimes, desired))

    assert texts["instances.yaml"] == text.replace("gpu_count: 1,\n    ", "gpu_count: 1,").replace(
        "vcpus: 4\n    memory_gib: 16\n",
        "vcpus: 5\n    prices:\n      - {usd_per_hour: 7.5, region: us-east-1, date: 2026-11-30, "
        "source: AWS Pricing API}\n    memory_gib: 16\n",
    )


def test_an_unwritable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.catalog.writing.os.access", lambda *_: False)

    with raises_code("not-writable", UserError) as refused:
        refuse_unwritable(BUNDLED)

    assert "--to DIR" in refused.value.fix
    (tmp_path / "file").write_text("")
    with raises_code("output-not-a-folder", UserError) as refused:
        refuse_unwritable(tmp_path / "file" / "below")

    assert str(tmp_path / "file") in refused.value.message
