"""No two targets have one short name: reported in the file that can change, or naming both."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.loading import check_catalog_file, read_short_names, target_files
from peagle.data import data_folder
from peagle.errors import CatalogError
from tests.support import raises_code
from tests.unit.catalog.catalog_files import GOOD, write_target


@pytest.mark.parametrize("org", ["acme", "zeta"])
def test_a_duplicate_short_name_is_reported_in_the_users_file(org: str, tmp_path: Path) -> None:
    """For any order of the ids: users cannot change the bundled file."""
    text = GOOD.replace("short_name: chat-7b", "short_name: gpt-oss-20b")
    path = write_target(tmp_path, text.replace("id: acme/", f"id: {org}/"), f"{org}/chat-7b")
    with raises_code("catalog", CatalogError) as caught:
        load_catalog(tmp_path)
    assert str(caught.value).startswith(f"{path}: short_name: gpt-oss-20b is also the short name")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_one_file_with_a_taken_short_name_has_a_problem(elsewhere: bool, tmp_path: Path) -> None:
    """Taken in the folder that the file is in, or in the user's other catalogue."""
    first = write_target(tmp_path / "first")
    at = tmp_path / ("second" if elsewhere else "first")
    second = write_target(at, GOOD.replace("id: acme/", "id: zeta/"), "zeta/chat-7b")
    (problem,) = check_catalog_file(second, tmp_path / "first")
    assert (problem.file, problem.key) == (str(second), "short_name")
    assert str(first) in problem.message


def test_a_file_may_replace_the_target_of_its_id(tmp_path: Path) -> None:
    write_target(tmp_path / "first")
    assert check_catalog_file(write_target(tmp_path / "other"), tmp_path / "first") == []


def test_a_copy_in_the_bundled_folder_is_found_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of CONTRIBUTING.md: a new file beside the bundled ones, checked by its path."""
    bundled = tmp_path / "model_catalog"
    text = (data_folder("model_catalog") / "openai" / "gpt-oss-20b.yaml").read_text()
    for org in ("openai", "acme"):
        (bundled / org).mkdir(parents=True)
        named = text.replace("id: openai/gpt-oss-20b\n", f"id: {org}/gpt-oss-20b\n")
        (bundled / org / "gpt-oss-20b.yaml").write_text(named)
    monkeypatch.setattr("peagle.catalog.documents.data_folder", lambda name: tmp_path / name)
    new, old = (bundled / org / "gpt-oss-20b.yaml" for org in ("acme", "openai"))
    (problem,) = check_catalog_file(new)
    _, (loaded,) = read_short_names(target_files(None))
    assert problem.text == f"{new}: short_name: gpt-oss-20b is also the short name in {old}"
    assert {str(new), str(old)} == {loaded.file, loaded.message.rpartition(" ")[2]}
