"""What vLLM does with a method of speculation, by version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.find import default_support
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import support_of
from tests.support import bundled_catalog


@pytest.fixture(autouse=True)
def catalog() -> Iterator[Catalog]:
    """The catalogue that ships, whose facts these are."""
    with bundled_catalog():
        yield load_catalog()


@pytest.mark.parametrize(
    ("method", "parallel", "vllm", "runner", "adaptive"),
    [
        ("eagle3", True, "0.28.0", "V1", False),
        ("eagle3", True, "0.33.0", "V1", False),
        ("eagle3", False, "0.28.0", "by-target", False),
        ("dflash", False, "0.28.0", "by-target", False),
        ("dflash", False, "0.29.0", "V2", False),
        ("eagle3", False, "0.30.0", "V2", True),
        ("mtp", False, "0.30.0", "V2", True),
        ("dflash", False, "0.30.0", "V2", True),
        ("dspark", False, "0.28.0", "V2", True),
    ],
)
def test_runner_and_adaptivity_are_data(
    method: str, parallel: bool, vllm: str, runner: str, adaptive: bool, catalog: Catalog
) -> None:
    support = support_of(catalog.runtimes, method, parallel, vllm)
    assert support is not None
    assert (support.model_runner, support.adaptive) == (runner, adaptive)


def test_what_is_not_known_of_a_method_is_unknown(catalog: Catalog) -> None:
    assert support_of(catalog.runtimes, "ngram", False, "0.28.0") is None
    assert support_of(catalog.runtimes, "eagle3", False, "0.20.0") is None
    assert default_support(catalog, None) is None
