"""methods.yaml: every method of vLLM and of the drafters is in it, and docs/methods.md shows it."""

import json

from peagle.catalog import load_catalog
from peagle.catalog.loading import load_table
from peagle.catalog.tables import MethodTable
from peagle.data import data_folder
from peagle.vllm.versions import compare
from tests.support import bundled_catalog
from tools.docs.methods_page import methods_page, support
from tools.docs.pages import FOLDER

with bundled_catalog():
    CATALOG = load_catalog()
    METHODS = load_table(MethodTable).methods

# mlp_speculator is a name without code: gpu_model_runner.py of 0.28.0 rejects it.
NO_METHODS_OF_DRAFTING = {"custom_class", "extract_hidden_states", "mlp_speculator"}


def test_vllm_has_no_other_method() -> None:
    facts = json.loads((data_folder("model_catalog") / "vllm.json").read_text(encoding="utf-8"))
    names = {"mtp" if name.endswith("_mtp") else name for name in facts["speculative_methods"]}
    assert {name for method in METHODS for name in method.vllm} == names - NO_METHODS_OF_DRAFTING


def test_every_drafter_has_one_method_and_is_not_older() -> None:
    rows = {(name, m.parallel_drafting): m for m in METHODS for name in m.vllm}
    assert len(rows) == sum(len(method.vllm) for method in METHODS)
    for target in CATALOG.targets.values():
        for drafter in target.drafters:
            method = rows[drafter.method, drafter.parallel_drafting]
            assert method.since is None or compare(method.since, drafter.min_vllm) <= 0


def test_a_method_that_vllm_had_is_shown_with_its_last_version() -> None:
    versions = ["0.28.0", "0.32.0", "0.33.0"]
    shown = {method.name: support(method, versions) for method in METHODS}
    assert shown["Medusa"] == "`medusa`, from 0.28.0 or earlier to 0.32.0"
    assert shown["P-EAGLE"] == "`eagle3` with `parallel_drafting`, from 0.16.0"
    assert shown["Hydra"] == "no"


def test_the_chapter_has_every_method_with_its_source() -> None:
    page = (FOLDER / "methods.md").read_text(encoding="utf-8")
    assert page == methods_page(), "run `make docs`"
    assert [page.count(f"]({method.source}) |") for method in METHODS] == [1] * len(METHODS)
