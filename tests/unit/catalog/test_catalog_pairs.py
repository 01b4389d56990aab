"""Names of pairs, drafters and instance types; a user's catalogue added to the bundled one."""

import json
from pathlib import Path

import pytest

from peagle.catalog import find_instance, find_pair, load_catalog, pair_name
from peagle.data import data_folder
from peagle.errors import CatalogError, NotFound, UserError
from tests.support import raises_code, run_in_process
from tests.unit.catalog.catalog_files import GOOD, write_target

CATALOG = load_catalog()
GPT = "openai/gpt-oss-20b"
PEAGLE = "amazon/GPT-OSS-20B-P-EAGLE"


@pytest.mark.parametrize(("name", "full_name"), [
    ("gpt-oss-20b", f"{GPT}+{PEAGLE}"),
    ("GPT-OSS-20B", f"{GPT}+{PEAGLE}"),
    ("OpenAI/GPT-OSS-20B", f"{GPT}+{PEAGLE}"),
    ("gpt-oss-20b+p-eagle", f"{GPT}+{PEAGLE}"),
    ("gpt-oss-20b+amazon/gpt-oss-20b-p-eagle", f"{GPT}+{PEAGLE}"),
    ("gpt-oss-20b+eagle3", f"{GPT}+RedHatAI/gpt-oss-20b-speculator.eagle3"),
    ("gpt-oss-20b+ngram", f"{GPT}+ngram"),
    ("gemma-4-31b-it", "google/gemma-4-31B-it+p-eagle"),
    ("Qwen3-Coder-30B-A3B-Instruct+ngram", "Qwen/Qwen3-Coder-30B-A3B-Instruct+ngram"),
    ("tiny", "peagle/tiny+p-eagle"),
])  # fmt: skip
def test_a_pair_is_found_by_any_of_its_names(name: str, full_name: str) -> None:
    pair = find_pair(CATALOG, name)
    assert pair_name(pair.target, pair.drafter) == full_name


@pytest.mark.parametrize("location", ["/models/mine", "./mine", "../mine", "~/m", "s3://b/mine"])
def test_a_location_as_pair_names_the_options_that_take_it(location: str) -> None:
    with raises_code("not-a-pair", UserError) as refused:
        find_pair(CATALOG, location)
    assert repr(location) in refused.value.message
    assert "--drafter" in refused.value.fix


@pytest.mark.parametrize("name", ["", " ", "+", "+eagle3", "gpt-oss-20b+"])
def test_an_incomplete_name_is_refused(name: str) -> None:
    with raises_code("not-a-pair", UserError) as refused:
        find_pair(CATALOG, name)
    assert refused.value.fix == "write TARGET or TARGET+DRAFTER"


def test_a_target_is_found_by_its_weights(tmp_path: Path) -> None:
    text = GOOD.replace("weights: acme/chat-7b\n", "weights: 'Meta/Chat-7B'\n")
    write_target(tmp_path, text)
    assert find_pair(load_catalog(tmp_path), "meta/chat-7b").target.id == "acme/chat-7b"


def test_a_name_of_two_organizations_is_ambiguous(tmp_path: Path) -> None:
    text = GOOD.replace("short_name: chat-7b", "short_name: own-chat")
    write_target(tmp_path, text)
    other = text.replace("id: acme", "id: apex").replace("own-chat", "apex-chat")
    write_target(tmp_path, other, "apex/chat-7b")
    with raises_code("several-targets", UserError) as refused:
        find_pair(load_catalog(tmp_path), "CHAT-7B")
    assert refused.value.fix == "write one of acme/chat-7b, apex/chat-7b"


def test_an_unknown_instance_type_suggests_others() -> None:
    assert find_instance(CATALOG.instances, "ml.g6e.2xlarge").gpu == "L40S"
    with raises_code("instance-unknown", NotFound) as refused:
        find_instance(CATALOG.instances, "ml.g6e.3xlarge")
    assert "family: ml.g6e.xlarge, ml.g6e.2xlarge, " in refused.value.fix
    with raises_code("instance-unknown", NotFound) as refused:
        find_instance(CATALOG.instances, "g6e.2xlarge")
    assert refused.value.fix.startswith("did you mean ml.g6e.2xlarge")


def test_an_own_folder_adds_targets(tmp_path: Path) -> None:
    path = write_target(tmp_path)
    catalog = load_catalog(tmp_path)
    assert find_pair(catalog, "chat-7b").target.title == "Acme Chat 7B"
    assert find_pair(catalog, "tiny").target.id == "peagle/tiny"
    assert catalog.origins["acme/chat-7b"] == str(path)


@pytest.mark.parametrize("place", ["openai/gpt-oss-20b", "OpenAI/gpt-oss-20b"])
def test_an_own_target_replaces_the_bundled_one_of_the_same_id(place: str, tmp_path: Path) -> None:
    text = GOOD.replace("id: acme/chat-7b", f"id: {place}")
    write_target(tmp_path, text.replace("short_name: chat-7b", "short_name: gpt-oss-20b"), place)
    assert find_pair(load_catalog(tmp_path), "gpt-oss-20b").target.title == "Acme Chat 7B"
    assert find_pair(load_catalog(tmp_path), "openai/gpt-oss-20b").target.title == "Acme Chat 7B"


def test_an_own_table_replaces_the_bundled_one(tmp_path: Path) -> None:
    text = (data_folder("model_catalog") / "runtimes.yaml").read_text()
    (tmp_path / "runtimes.yaml").write_text(text.replace('default: "0.28.0"', 'default: "0.26.0"'))
    assert load_catalog(tmp_path).runtimes.default == "0.26.0"
    assert load_catalog(tmp_path).instances == CATALOG.instances


# No two targets have one short name: reported in the file that can change, or naming both.
@pytest.mark.parametrize("org", ["acme", "zeta"])
def test_a_duplicate_short_name_is_reported_in_the_users_file(org: str, tmp_path: Path) -> None:
    """For any order of the ids: users cannot change the bundled file."""
    text = GOOD.replace("short_name: chat-7b", "short_name: gpt-oss-20b")
    path = write_target(tmp_path, text.replace("id: acme/", f"id: {org}/"), f"{org}/chat-7b")
    with raises_code("catalog", CatalogError) as caught:
        load_catalog(tmp_path)
    assert str(caught.value).startswith(f"{path}: short_name: gpt-oss-20b is also the short name")


# A new instance type needs one table entry, and a new pair one file.
NEW_TYPE = "ml.g9x.2xlarge"
NEW_INSTANCE = f"""\
  - type: {NEW_TYPE}
    gpu: X100
    gpu_count: 1
    gpu_memory_mib: 98304
    gpu_architecture: sm_121
    vcpus: 8
    memory_gib: 64
    prices:
      - {{usd_per_hour: 3.21, region: us-east-1, date: 2026-11-22, source: announcement}}
"""


@pytest.fixture
def extended_catalog(tmp_path: Path) -> Path:
    """A catalogue with an instance type that is unknown to AWS SDKs, and a new pair."""
    table = (data_folder("model_catalog") / "instances.yaml").read_text(encoding="utf-8")
    (tmp_path / "instances.yaml").write_text(f"{table}{NEW_INSTANCE}", encoding="utf-8")
    write_target(tmp_path, GOOD)
    return tmp_path


@pytest.mark.thorough
def test_a_plan_uses_the_new_pair_and_the_new_type(extended_catalog: Path) -> None:
    words = ("plan", "chat-7b", "--instance-type", NEW_TYPE, "--json")
    done = run_in_process("--catalog", str(extended_catalog), *words)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["pair"] == "acme/chat-7b+acme/chat-7b-p-eagle"
    assert plan["instance_type"] == NEW_TYPE
    assert plan["price_per_hour_usd"] == 3.21
