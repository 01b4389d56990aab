"""Wrong catalogue files; each is reported with file, line, key and expected value."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.loading import check_catalog, check_catalog_file
from peagle.errors import CatalogError
from tests.support import raises_code
from tests.unit.catalog.catalog_files import GOOD, write_target


class Damage(NamedTuple):
    """``old`` becomes ``new``; the problem must be ``key`` on a line that contains ``mark``."""

    name: str
    old: str
    new: str
    key: str
    mark: str
    message: str
    fix: str = ""


# fmt: off
CORPUS = (
    Damage("a word for a number", "k_trained: 8", "k_trained: ten", "drafters[0].k_trained",
           "k_trained", "expected a whole number, found 'ten'"),
    Damage("a fraction for a whole number", "k_trained: 8", "k_trained: 8.5",
           "drafters[0].k_trained", "k_trained", "expected a whole number, found 8.5"),
    Damage("a quoted number", "layers: 32\n  q", 'layers: "32"\n  q', "architecture.layers",
           'layers: "32"', "expected a whole number, found '32'"),
    Damage("a number below its least", "k_recommended: 5", "k_recommended: 0",
           "drafters[0].k_recommended", "k_recommended: 0",
           "expected a number of at least 1, found 0"),
    Damage("an acceptance length below one", "acceptance_length: 2.5", "acceptance_length: 0.5",
           "drafters[0].published[0].acceptance_length", "MT-Bench",
           "expected a number of at least 1"),
    Damage("a version without quotes, which YAML makes a number and shortens",
           'min_vllm: "0.22.0"', "min_vllm: 0.20", "drafters[0].min_vllm", "min_vllm: 0.20",
           "expected text, found 0.20", 'write it in quotes: "0.20"'),
    Damage("a version that is none", 'min_vllm: "0.22.0"', "min_vllm: latest",
           "drafters[0].min_vllm", "latest",
           """expected a version such as "0.28.0", found 'latest'"""),
    Damage("a yes that YAML 1.1 reads as true", "parallel_drafting: true",
           "parallel_drafting: yes", "drafters[0].parallel_drafting", "parallel_drafting",
           "expected true or false, found 'yes'", "write true"),
    Damage("an unknown method", "method: eagle3", "method: eagle4", "drafters[0].method", "eagle4",
           "expected one of eagle3, mtp, dflash, dspark, ngram, suffix, found 'eagle4'",
           "did you mean eagle3?"),
    Damage("a misspelt key", "k_trained: 8", "k_trianed: 8", "drafters[0].k_trianed", "k_trianed",
           "unknown key", "did you mean k_trained"),
    Damage("a key that is far from all others", "licence: apache-2.0",
           "licence: apache-2.0\nxyzzy: 1", "xyzzy", "xyzzy", "unknown key",
           "known keys: architecture"),
    Damage("a missing key", "licence: apache-2.0\n", "", "licence", "id: ", "missing key",
           "add the key"),
    Damage("a missing key of a drafter", "    source: the card\n  - name: ngram",
           "  - name: ngram", "drafters[0].source", "- name: p-eagle", "missing key"),
    Damage("an empty value", "title: Acme Chat 7B", "title:", "title", "title:",
           "expected text, found nothing"),
    Damage("one thing where a list belongs", "prompts: [Hello]", "prompts: Hello", "proof.prompts",
           "prompts", "expected a list, found 'Hello'", "write [Hello]"),
    Damage("text with a colon, which YAML reads as a key", "prompts: [Hello]",
           "prompts:\n    - Say it: hello", "proof.prompts[0]", "Say it",
           "expected text, found keys with values", "quote text that contains a colon"),
    Damage("a list where keys belong", "proof:\n  prompts: [Hello]", "proof: [Hello]", "proof",
           "proof", "expected keys with values, found a list"),
    Damage("a value of none of its types", "value: 4", "value: [4]",
           "drafters[0].engine_arguments[0].value", "stream-interval",
           "expected text or a whole number or a number or true or false, found a list"),
    Damage("a duplicate key", "k_trained: 8", "k_trained: 8\n    k_trained: 10", "k_trained",
           "k_trained: 10", "duplicate key"),
    Damage("an id that is not the path of the file", "id: acme/chat-7b", "id: acme/chat-8b", "id",
           "id: ", "expected acme/chat-7b, the path of the file, found acme/chat-8b",
           "rename the file to acme/chat-8b.yaml"),
    Damage("an id in other letters", "id: acme/chat-7b", "id: Acme/chat-7b", "id", "id: ",
           "expected acme/chat-7b, the path"),
    Damage("an id that is none", "id: acme/chat-7b", "id: chat-7b", "id", "id: ",
           "expected a Hugging Face id such as openai/gpt-oss-20b"),
    Damage("a default drafter that is not there", "default_drafter: p-eagle",
           "default_drafter: p-eagel", "default_drafter", "default_drafter",
           "there is no drafter 'p-eagel'", "did you mean p-eagle"),
    Damage("two drafters of one name", "name: ngram", "name: p-eagle", "drafters[0].name",
           "name: p-eagle", "duplicate name p-eagle"),
    Damage("a fallback that is not there", "k_trained: 8", "k_trained: 8\n    fallback: eagle3",
           "drafters[0].fallback", "fallback", "there is no public drafter 'eagle3'"),
    Damage("more drafted than trained", "k_recommended: 5", "k_recommended: 9",
           "drafters[0].k_recommended", "k_recommended: 9", "9 exceeds k_trained 8"),
    Damage("a head without weights", "    weights: acme/chat-7b-p-eagle\n", "",
           "drafters[0].weights", "- name: p-eagle", "a public head needs weights"),
    Damage("weights of a head that is not public", "    weights: acme/chat-7b-p-eagle\n",
           "    weights: acme/chat-7b-p-eagle\n    public: false\n", "drafters[0].weights",
           "weights: acme/chat-7b-p-eagle", "a private head has no weights"),
    Damage("weights of a method that has none", "method: ngram",
           "method: ngram\n    weights: acme/n", "drafters[1].weights", "acme/n",
           "the method ngram has no weights"),
    Damage("parallel drafting of a method that does not take it", "method: eagle3", "method: mtp",
           "drafters[0].parallel_drafting", "parallel_drafting",
           "the method mtp does not support it"),
    Damage("a folder that is not there", "weights: acme/chat-7b\n", "weights: ./chat-7b/target\n",
           "weights", "./chat-7b/target", "there is no folder ./chat-7b/target next to the file"),
    Damage("a folder outside the catalogue", "weights: acme/chat-7b\n", "weights: ./../..\n",
           "weights", "./../..", "is outside the catalogue"),
    Damage("weights that are no place", "weights: acme/chat-7b\n", "weights: chat\n", "weights",
           "weights: chat", "'chat' is not a weights location"),
    Damage("layers that do not add up", "layers: 32\n  q", "layers: 33\n  q",
           "architecture.attention", "- {kind",
           "the groups have 32 layers in total, the model has 33"),
    Damage("a sliding group without a window", "kind: full", "kind: sliding",
           "architecture.attention[0]", "kind: sliding", "a group of kind sliding needs a window"),
    Damage("experts without their number per token", "vocab_size", "experts: 8\n  vocab_size",
           "architecture", "class_name", "experts and experts_per_token must both be set"),
    Damage("a context beyond the model's", "default_max_model_len: 8192",
           "default_max_model_len: 8193", "default_max_model_len", "default_max_model_len",
           "8193 exceeds max_positions 8192"),
    Damage("a bad indent", "licence: apache-2.0", "  licence: apache-2.0", "", "licence",
           "is not YAML"),
    Damage("a bracket that is never closed", "prompts: [Hello]", "prompts: [Hello", "",
           "source: the card", "is not YAML"),
    Damage("an alias to nothing", "licence: apache-2.0", "licence: *nothing", "", "*nothing",
           "undefined alias"),
    Damage("an alias to itself", "proof:", "proof: &me\n  extra: *me", "", "proof: &me",
           "refers to itself"),
)
# fmt: on


@pytest.mark.parametrize("damage", CORPUS, ids=[damage.name for damage in CORPUS])
def test_a_problem_has_file_line_and_key(damage: Damage, tmp_path: Path) -> None:
    assert damage.old in GOOD
    text = GOOD.replace(damage.old, damage.new, 1)
    path = write_target(tmp_path, text)

    problem = check_catalog_file(path)[0]

    assert problem.file == str(path)
    assert problem.key == damage.key
    assert problem.line in _lines_with(damage.mark, text)
    assert damage.message in problem.message
    assert damage.fix in problem.fix


def _lines_with(mark: str, text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), start=1) if mark in line]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected keys with values, found nothing"),
        (b"# only a comment\n", "expected keys with values, found nothing"),
        (b"just words\n", "expected keys with values, found 'just words'"),
        (b"- a\n- list\n", "expected keys with values, found a list"),
        (b"title: caf\xe9\n", "is not UTF-8 (invalid byte at offset 10)"),
        (b"a: 1\n---\nb: 2\n", "is not YAML"),
        (b"\x00", "is not YAML"),
        (b"? [a, b]\n: 1\n", "a key must be plain text"),
    ],
)
def test_an_unreadable_file_is_one_problem(content: bytes, message: str, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    path.write_bytes(content)

    (problem,) = check_catalog_file(path)

    assert message in problem.message


def test_all_problems_of_a_file_are_reported(tmp_path: Path) -> None:
    text = GOOD.replace("k_trained: 8", "k_trained: ten").replace(
        "licence: apache-2.0", "lisence: x"
    )
    path = write_target(tmp_path, text)

    keys = {problem.key for problem in check_catalog_file(path)}

    assert keys == {"drafters[0].k_trained", "licence", "lisence"}


def test_a_wrong_target_raises_its_first_problem_and_counts_the_others(
    tmp_path: Path,
) -> None:
    text = GOOD.replace("k_trained: 8", "k_trained: ten").replace(
        "licence: apache-2.0", "lisence: x"
    )
    write_target(tmp_path, text)

    with raises_code("catalog", CatalogError) as caught:
        find_pair(load_catalog(tmp_path), "chat-7b")

    assert "chat-7b.yaml:6: lisence: " in caught.value.message
    assert caught.value.command == ("peagle", "catalog", "check")
    assert "2 more problems" in caught.value.fix
    assert "did you mean licence?" in caught.value.fix


def test_a_wrong_target_does_not_affect_others(tmp_path: Path) -> None:
    write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))

    assert find_pair(load_catalog(tmp_path), "gpt-oss-20b").target.id == "openai/gpt-oss-20b"


@pytest.mark.thorough
@given(
    start=st.integers(0, len(GOOD)),
    length=st.integers(0, 40),
    instead=st.text(max_size=12)
    | st.sampled_from(["{", "[", "*a", "&a ", ": ", "- ", "1e9", "\t"]),
)
def test_random_damage_never_crashes_the_reader(
    start: int, length: int, instead: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = GOOD[:start] + instead + GOOD[start + length :]
    path = write_target(tmp_path_factory.getbasetemp(), text)

    for problem in check_catalog_file(path):
        assert problem.message
        assert problem.line is None or 1 <= problem.line <= len(text.splitlines()) + 1


@pytest.mark.parametrize(
    ("table", "old", "new", "where"),
    [
        ("runtimes.yaml", 'default: "0.28.0"', 'default: "0.99.0"', "default: there is no runtime"),
        ("runtimes.yaml", '"0.24.0"', '"0.23.0"', "duplicate vllm 0.23.0"),
        ("runtimes.yaml", "  us-east-1:", "  us-east-9:", "no account is known for 'us-east-1'"),
        ("runtimes.yaml", '"626614931356"', "626614931356", "accounts.af-south-1: expected text"),
        ("instances.yaml", "sm_75", "7.5", "gpu_architecture: expected text, found 7.5"),
        (
            "instances.yaml",
            "2026-07-01",
            "July",
            "expected a date such as 2026-07-01, found 'July'",
        ),
        ("instances.yaml", "0.7364", "0", "usd_per_hour: expected a number above 0"),
        ("instances.yaml", "ml.g4dn.2xlarge", "ml.g4dn.xlarge", "duplicate type"),
        ("instances.yaml", "ml.g4dn.2xlarge", "g4dn.2xlarge", "expected an instance type such as"),
    ],
)
def test_a_wrong_table_of_the_user_is_an_error(
    table: str, old: str, new: str, where: str, tmp_path: Path
) -> None:
    bundled = (Path(load_catalog().origins["peagle/tiny"]).parents[1] / table).read_text()
    (tmp_path / table).write_text(bundled.replace(old, new, 1))

    with raises_code("catalog", CatalogError) as caught:
        load_catalog(tmp_path)

    assert table in str(caught.value)
    assert where in str(caught.value)


def test_files_that_are_never_read_are_problems(tmp_path: Path) -> None:
    write_target(tmp_path)
    (tmp_path / "acme" / "other.yml").write_text(GOOD)
    (tmp_path / "chat-7b.yaml").write_text(GOOD)

    _, problems = check_catalog(tmp_path)

    assert [Path(problem.file).name for problem in problems] == ["other.yml", "chat-7b.yaml"]
    assert {problem.message for problem in problems} == {"is not read from this path"}
