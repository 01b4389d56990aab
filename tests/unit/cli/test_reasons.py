"""Every code of a reason has a sentence, whose values every reason with that code has."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import peagle
from peagle.cli.view.reasons import read_sentences, reason_text
from peagle.planning.plan import Detail, Reason, reason

ROOT = Path(peagle.__file__).parent
SENTENCES, _ = read_sentences()


def constants(node: ast.expr, names: Mapping[str, set[str]]) -> set[str]:
    """The texts that an expression can be: a constant, one of two, or what a name is set to."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.IfExp):
        return constants(node.body, names) | constants(node.orelse, names)
    return names[ast.unparse(node)]


def reasons_in(file: Path) -> Iterator[tuple[str, set[str]]]:
    """Each code with the names of its values, by the calls in a file."""
    tree = ast.walk(ast.parse(file.read_text()))
    nodes = [node for node in tree if isinstance(node, ast.Assign | ast.Call)]
    names = dict[str, set[str]]()  # what is assigned since the last call
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code":
            names.setdefault("code", set()).update(constants(node.value, {}))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "reason",
            "decisions.explain",
        ):
            assert all(keyword.arg for keyword in node.keywords), ast.unparse(node)
            values = {str(keyword.arg) for keyword in node.keywords}
            for code in constants(node.args[2], names):
                yield code, values
            names.clear()


FILES = [
    file
    for file in sorted(ROOT.rglob("*.py"))
    if re.search(r"\b(reason|decisions\.explain)\(", file.read_text()) and file.name != "plan.py"
]
CALLS = [entry for file in FILES for entry in reasons_in(file)]


class _Names(dict[str, Detail]):
    """Values that record which a sentence reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, key: str, default: object = None) -> None:  # type: ignore[override]
        self.read.add(key)


def names_in(sentence: str) -> set[str]:
    names = _Names()
    reason_text(Reason.model_construct(what="", value="", code=sentence, values=names))
    return names.read


def test_every_code_has_a_sentence_and_no_sentence_is_left_over() -> None:
    assert {code for code, _ in CALLS} == set(SENTENCES)
    assert len(CALLS) > 60


@pytest.mark.parametrize("code", SENTENCES)
def test_the_values_of_a_sentence_are_those_of_each_reason(code: str) -> None:
    for values in (values for other, values in CALLS if other == code):
        assert names_in(code) <= values


HOURLY: Mapping[str, Detail] = {"usd_per_hour": 4.2}


@pytest.mark.parametrize(("code", "values", "text"), [
    ("context-too-long", {"tokens": 131072}, "131,072 tokens do not fit"),
    ("nearest-instance", HOURLY, "the nearest to what is required, at $4.20 an hour"),
    ("nearest-instance", {"instances": 2}, "the nearest to what is required, price unknown"),
    ("nearest-instance", {**HOURLY, "instances": 1},
     "the nearest to what is required, at $4.20 an hour"),
    ("nearest-instance", {**HOURLY, "instances": 2},
     "the nearest to what is required, at $4.20 an hour for 2"),
    ("only-instance", {**HOURLY, "required": False}, "the only type that fits; at $4.20 an hour"),
    ("only-instance", {**HOURLY, "holds_load": True, "required": True, "meets": True},
     "the only type that fits for this load, known to meet what is required; at $4.20 an hour"),
    ("only-instance", {**HOURLY, "required": True, "meets": False},
     "the only type that fits, not known to meet what is required; at $4.20 an hour"),
    ("fastest-k",
     {"basis": "measured", "tokens_per_second": 1234.5, "requests": 1, "others": {"3": 900.0}},
     "the fastest (measured): 1,234 tokens/s with 1 request at a time, 900 with K=3"),
    ("time-to-start",
     {"hub_bytes": 0, "s3_bytes": 17_000_000_000, "readers": 4, "engine_seconds": 600},
     "17.0 GB from S3 at 100 MB/s (4 GPUs read all), and 10m 00s to compile"),
    ("rollout-bakes", {"seconds": 600, "copies": False},
     "updates bake 10m 00s after each step; an alarm undoes them"),
    ("catalogue-setting", {"because": "{a|b} is faster"}, "{a|b} is faster"),
    ("copies-share-gpus", {"gpus_each": 1, "used": 8, "gpus": 8},
     "with 1 GPU each they use 8 of the 8 GPUs"),
    ("of-a-later-version", {}, "of-a-later-version"),
])  # fmt: skip
def test_sentences(code: str, values: Mapping[str, Detail], text: str) -> None:
    assert reason_text(reason("what", "value", code, **values)) == text


def test_a_reason_has_only_values_that_are_known() -> None:
    made = reason("k", 5, "a-code", usd=None, requests=0, is_fastest=False)
    assert made == Reason(
        what="k", value="5", code="a-code", values={"requests": 0, "is_fastest": False}
    )
    assert Reason.model_validate_json(made.model_dump_json()) == made
