"""The bundled catalogue: it loads, and values with two sources agree."""

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.loading import check_catalog
from peagle.catalog.schema import Drafter
from peagle.catalog.summary import default_support
from peagle.catalog.tables import find_support
from peagle.checkpoints import FolderSource, read_checkpoint
from peagle.data import data_folder
from peagle.findings import errors
from peagle.planning import Options, make_plan
from tests.support import bundled_catalog

with bundled_catalog():
    CATALOG = load_catalog()
    TINY = data_folder("model_catalog") / "peagle" / "tiny"


TARGETS = list(CATALOG.targets.values())
DRAFTERS = [(target, drafter) for target in TARGETS for drafter in target.drafters]
DRAFTER_IDS = [f"{target.short_name}+{drafter.name}" for target, drafter in DRAFTERS]


def drafter(pair: str) -> Drafter:
    return dict(zip(DRAFTER_IDS, (entry for _, entry in DRAFTERS), strict=True))[pair]


@pytest.mark.thorough
def test_the_bundled_catalogue_has_no_problems() -> None:
    with bundled_catalog():
        files, problems = check_catalog()
    assert problems == []
    assert len(files) >= len(TARGETS) + 2


@pytest.mark.parametrize("name", ["p-eagle", "eagle3"])
def test_the_heads_of_tiny_equal_their_files(name: str) -> None:
    head, read = drafter(f"tiny+{name}"), read_checkpoint(FolderSource(TINY / name))
    assert read.tensors is not None
    assert head.hidden_layers == read.config["num_hidden_layers"]
    assert head.max_positions == read.config["max_position_embeddings"]
    assert head.own_embeddings == ("embed_tokens.weight" in read.tensors)
    assert head.weight_bytes == sum(tensor.size for tensor in read.tensors.values())
    assert head.parallel_drafting == ("mask_hidden" in read.tensors)


@pytest.mark.parametrize("pair", DRAFTER_IDS)
def test_every_bundled_pair_has_a_plan_without_errors(pair: str) -> None:
    made = make_plan(Options(pair=pair), CATALOG)
    assert errors(made.findings) == []
    assert made.fit.fits
    assert made.price_per_hour_usd is not None
    assert made.speculation is not None


@pytest.mark.parametrize("target", [target.short_name for target in CATALOG.targets.values()])
def test_every_bundled_target_can_be_served_alone(target: str) -> None:
    made = make_plan(Options(pair=target, speculation=False), CATALOG)
    assert errors(made.findings) == []
    assert made.drafter is None


# What vLLM does with a method of speculation, by version.
@pytest.mark.parametrize(("method", "parallel", "vllm", "runner", "adaptive"), [
    ("eagle3", True, "0.28.0", "V1", False),
    ("eagle3", True, "0.33.0", "V1", False),
    ("eagle3", False, "0.28.0", "by-target", False),
    ("dflash", False, "0.28.0", "by-target", False),
    ("dflash", False, "0.29.0", "V2", False),
    ("eagle3", False, "0.30.0", "V2", True),
    ("mtp", False, "0.30.0", "V2", True),
    ("dflash", False, "0.30.0", "V2", True),
    ("dspark", False, "0.28.0", "V2", True),
])  # fmt: skip
def test_runner_and_adaptivity_are_data(
    method: str, parallel: bool, vllm: str, runner: str, adaptive: bool
) -> None:
    support = find_support(CATALOG.runtimes, method, parallel, vllm)
    assert support is not None
    assert (support.model_runner, support.adaptive) == (runner, adaptive)


def test_what_is_not_known_of_a_method_is_unknown() -> None:
    assert find_support(CATALOG.runtimes, "ngram", False, "0.28.0") is None
    assert find_support(CATALOG.runtimes, "eagle3", False, "0.20.0") is None
    assert default_support(CATALOG, None) is None
