"""What vLLM does with a method of speculation, by version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.find import default_support
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import support_of
from tests.support import bundled_catalog, in_process


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


@pytest.mark.parametrize("size", ["20b", "120b"])
def test_the_dflash_heads_of_gpt_oss_are_not_the_default(size: str, catalog: Catalog) -> None:
    pair = find_pair(catalog, f"gpt-oss-{size}+dflash")
    assert pair.drafter is not None
    assert pair.drafter.weights == f"z-lab/gpt-oss-{size}-DFlash"
    assert pair.drafter.licence == "mit"
    assert pair.target.default_drafter == "p-eagle"


def test_check_refuses_adaptive_verification_where_vllm_does() -> None:
    words = ("check", "gpt-oss-20b", "--speculative", "enable_adaptive_verification=true", "--json")
    (found,) = [
        f for f in in_process(*words).document["findings"] if f["code"] == "speculative-setting"
    ]
    assert found["level"] == "error"
