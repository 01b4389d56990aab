"""A refresh writes files of its own beside the tables, from which the same tables are loaded."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.documents import Location, parse_document
from peagle.catalog.loading import check_catalog, validate_file
from peagle.catalog.schema import Target
from peagle.catalog.tables import Price, Runtime
from peagle.catalog.writing import Tables, entry_text, new_texts, write_texts
from peagle.data import data_folder
from peagle.errors import UserError
from tests.support import bundled_catalog, raises_code

BUNDLED = data_folder("model_catalog")
CATALOG = load_catalog()
BEFORE = Tables(CATALOG.runtimes, CATALOG.instances)
TODAY = date(2026, 11, 30)
PRICE = Price(usd_per_hour=7.5, region="us-east-1", date=TODAY, source="AWS: Pricing API")
NEW = Runtime(vllm="0.28.1", repository="vllm", tag="0.28.1-gpu", cuda="13.0", ami="some-ami")


def with_price(tables: Tables, price: Price = PRICE) -> Tables:
    """The tables with this price alone of every type."""
    instances = tuple(
        instance.model_copy(update={"prices": (price,)}) for instance in tables.instances.instances
    )
    update = {"instances": instances, "checked": TODAY}
    return Tables(tables.runtimes, tables.instances.model_copy(update=update))


def with_images(tables: Tables) -> Tables:
    """The tables with a new version, a new region, another account and a digest."""
    changed = [
        runtime.model_copy(
            update={"regions": (*runtime.regions, "eu-north-9"), "digest": "sha256:" + "a" * 64}
        )
        for runtime in tables.runtimes.runtimes
    ]
    at = next(n for n, runtime in enumerate(changed) if runtime.vllm == "0.28.0") + 1
    accounts = {
        **tables.runtimes.accounts,
        "eu-north-9": "094389454867",
        "us-west-2": "000011112222",
    }
    update: dict[str, Any] = {
        "runtimes": (*changed[:at], NEW, *changed[at:]), "accounts": accounts, "checked": TODAY,
        "source": "the SDK: of today",
    }  # fmt: skip
    return Tables(tables.runtimes.model_copy(update=update), tables.instances)


def loaded(folder: Path) -> Tables:
    catalog = load_catalog(folder)
    return Tables(catalog.runtimes, catalog.instances)


@pytest.mark.parametrize(
    ("change", "file"), [(with_price, "prices.yaml"), (with_images, "images.yaml")]
)
def test_only_what_changed_is_written_and_is_loaded_again(
    change: Any, file: str, tmp_path: Path
) -> None:
    folder = tmp_path / "made" / "here"
    after = change(BEFORE)
    (path,) = write_texts(folder, new_texts(BEFORE, after))
    assert path == folder / file
    assert [path.name for path in folder.iterdir()] == [file]
    assert loaded(folder) == after
    checked, problems = check_catalog(folder)
    assert path in checked
    assert problems == []


def test_a_second_refresh_replaces_the_first(tmp_path: Path) -> None:
    first = with_images(with_price(BEFORE))
    write_texts(tmp_path, new_texts(BEFORE, first))
    second = with_price(first, PRICE.model_copy(update={"usd_per_hour": 9.0}))
    written = write_texts(tmp_path, new_texts(first, second))
    assert [path.name for path in written] == ["prices.yaml"]
    assert loaded(tmp_path) == second


def test_a_table_of_the_user_is_not_changed_by_the_bundled_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, copy = tmp_path / "own", tmp_path / "copy"
    written.mkdir()
    text = (BUNDLED / "instances.yaml").read_text(encoding="utf-8")
    (written / "instances.yaml").write_text(text, encoding="utf-8")
    copy.mkdir()
    for path in BUNDLED.iterdir():
        (copy / path.name).symlink_to(path)
    write_texts(copy, new_texts(BEFORE, with_price(BEFORE)))
    monkeypatch.setenv("PEAGLE_BUNDLED_CATALOG", str(copy))
    assert load_catalog().instances == with_price(BEFORE).instances
    assert load_catalog(written).instances == BEFORE.instances


def test_a_wrong_refreshed_file_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("checked: 2026-11-30\nprices: 7\n")
    with raises_code("catalog", UserError) as refused:
        load_catalog(tmp_path)
    assert "prices.yaml:2: prices: " in refused.value.message


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code("not-writable", UserError) as refused:
        write_texts(tmp_path / "file" / "below", {"prices.yaml": ""})
    assert "--to DIR" in refused.value.fix


# A target's file is written so that the catalogue loads the same target from it.
with bundled_catalog():
    TARGETS = dict(load_catalog().targets)


PUBLIC = [target for target in TARGETS.values() if not target.weights.startswith("./")]
ONE = PUBLIC[0]


def data_of(text: str) -> dict[str, Any]:
    data: dict[str, Any] = parse_document(text, "file").data or {}
    return data


def file_of(target: Target) -> Path:
    return Path(f"{target.id}.yaml")


@pytest.mark.parametrize("target", PUBLIC, ids=lambda target: target.short_name)
def test_every_target_is_loaded_again_from_its_file(target: Target) -> None:
    text = entry_text(target, {}, file_of(target))
    assert validate_file(file_of(target), Target, text) == (target, [])


@pytest.mark.parametrize("value", ["no", "true", "null", "1.5", "0.28", "~", "a: b", "a #b", "- x"])
def test_text_that_looks_like_another_type_is_quoted(value: str) -> None:
    target = ONE.model_copy(update={"licence": value})
    text = entry_text(target, {}, file_of(ONE))
    assert data_of(text)["licence"] == value


@pytest.mark.thorough
def test_comments_say_what_is_unknown() -> None:
    unknown: dict[Location, str] = {
        ("licence",): "see its card",
        ("dtype",): "the config does not say",
        ("drafters", 0, "published"): "no claims",
    }
    target = ONE.model_copy(update={"dtype": "bfloat16"})
    lines = entry_text(target, unknown, file_of(ONE)).splitlines()
    assert lines[:3] == [
        "# unknown: licence, see its card",
        "# unknown: dtype, the config does not say",
        "# unknown: drafters[0].published, no claims",
    ]


@pytest.mark.thorough
def test_a_comment_cannot_add_a_key() -> None:
    text = entry_text(ONE, {("licence",): "x\ngated: true"}, file_of(ONE))
    assert "gated" not in data_of(text)
