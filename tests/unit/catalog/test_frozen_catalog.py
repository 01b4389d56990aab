"""Tests read a frozen catalogue, so that a refresh of the bundled one breaks none of them."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.loading import check_catalog
from peagle.data import data_folder
from peagle.planning import make_plan
from peagle.render import plan_bytes
from tests.golden import FOLDER
from tests.support import (
    FROZEN_CATALOG,
    REFRESHED,
    bundled_catalog,
    bundled_evidence,
    run_as_process,
    run_in_process,
)
from tests.unit.planning.test_plan_bundled import GOLDEN

CHANGES = {
    "instances.yaml": (
        (r"usd_per_hour: (\d)", r"usd_per_hour: 1\1"),
        (r"\n  - type: ml\.g6\.xlarge\n(?:.|\n)*?(?=\n  - type)", ""),
    ),
    "runtimes.yaml": ((r"-ubuntu24\.04-sagemaker", "-ubuntu26.04-sagemaker"),),
}
"""Changes by a refresh: other prices, a removed instance type, other images."""


@pytest.fixture
def refreshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundled catalogue after a refresh."""
    with bundled_catalog():
        bundled = data_folder("model_catalog")
    copy = tmp_path / "model_catalog"
    shutil.copytree(bundled, copy, ignore=shutil.ignore_patterns("tiny"))
    (copy / "peagle" / "tiny").symlink_to(bundled / "peagle" / "tiny")
    assert set(CHANGES) == set(REFRESHED)
    for name, changes in CHANGES.items():
        text = (copy / name).read_text()
        for pattern, other in changes:
            text, found = re.subn(pattern, other, text)
            assert found, pattern
        (copy / name).write_text(text)
    monkeypatch.setattr("peagle.data._PACKAGE", tmp_path / "toolkit" / "peagle")
    return copy


def _golden(name: str) -> bytes:
    return (FOLDER / "plans" / f"{name}.json").read_bytes()


@pytest.mark.thorough
def test_golden_plans_do_not_read_the_bundled_catalogue(refreshed: Path) -> None:
    with bundled_catalog():
        assert check_catalog()[1] == []
        assert plan_bytes(make_plan(GOLDEN["tiny"], load_catalog())) != _golden("tiny")
    for name, options in GOLDEN.items():
        assert plan_bytes(make_plan(options, load_catalog())) == _golden(name)


@pytest.mark.thorough
@pytest.mark.parametrize("run", [run_in_process, run_as_process])
def test_commands_in_tests_do_not_read_the_bundled_catalogue(refreshed: Path, run: object) -> None:
    done = run("plan", "gpt-oss-20b", "--json", env=dict(os.environ))  # type: ignore[operator]
    assert done.stdout.encode() == _golden("gpt-oss-20b")


@pytest.mark.thorough
def test_bundled_evidence_comes_with_frozen_prices_and_images(refreshed: Path) -> None:
    frozen = load_catalog()
    with bundled_catalog():
        bundled = load_catalog()
    with bundled_evidence():
        mixed = load_catalog()
        assert check_catalog()[1] == []
        assert mixed.targets == bundled.targets
    assert (mixed.instances, mixed.runtimes) == (frozen.instances, frozen.runtimes)
    assert mixed.instances != bundled.instances


def test_the_frozen_catalogue_links_the_bundled_weights() -> None:
    with bundled_catalog():
        bundled = data_folder("model_catalog")
    assert data_folder("model_catalog") == FROZEN_CATALOG
    assert (FROZEN_CATALOG / "peagle/tiny").resolve() == (bundled / "peagle/tiny").resolve()
