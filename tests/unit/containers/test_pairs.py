"""A head that does not fit its target, and a pair other than the image's, are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from peagle.checks.registry import check
from peagle.planning import Plan
from peagle.render.image import pair_document
from peagle_serve.checks import check_built_for, check_pair, code_variables
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.crash import parse_crash
from tests.engine import trials
from tests.unit.checks.cases import GEOMETRY, geometry_case
from tests.unit.checks.corpus import Broken
from tests.unit.checks.corpus_heads import HEADS
from tests.unit.checks.corpus_rest import REST
from tests.unit.containers.broken_pairs import ONLY_IN_THE_TOOLKIT, PAIR_CODES, SETTINGS, refusal
from tests.unit.containers.recording import SERVE, container_in, documents
from tests.unit.containers.weights import HEAD, HEAD_TENSORS, TARGET, pair
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, plan_for

SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"
AUX = "eagle_aux_hidden_state_layer_ids"
PARALLEL = "parallel_drafting"


def layers(*numbers: Any) -> dict[str, Any]:
    return {**HEAD, "eagle_config": {AUX: list(numbers)}}


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


UNLISTED = without(HEAD, "eagle_config")
NARROW = {"fc.weight": [4, 16], "mask_hidden": [16]}
NO_MASK = without(HEAD_TENSORS, "mask_hidden")


def pair_refusal(environment: dict[str, str], **changes: Any) -> str:
    """The refusal with changes in the speculative configuration (``None``: without the key)."""
    config = json.loads(environment[SPECULATION]) | changes
    config = {name: value for name, value in config.items() if value is not None}
    try:
        check_pair({**environment, SPECULATION: json.dumps(config)})
    except InvalidEnvironment as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("change", "what"), [
    ({}, ""),
    ({"target": {"text_config": TARGET}}, ""),
    ({"head": UNLISTED | {AUX: [2, 5, 7]}}, ""),
    ({"head": UNLISTED}, ""),
    ({"head": without(HEAD, "ptd_token_id") | {"mask_token_id": 2}}, ""),
    ({"head": without(HEAD, "target_hidden_size")}, ""),
    ({"target": {"architectures": ["Unknown"]}}, ""),
    ({"head": {**UNLISTED, "architectures": ["Qwen3ForCausalLM"], AUX: [1, 9]}, "tensors": NARROW},
     ""),
    ({"head": layers(1, 9), "tensors": NARROW}, ""),
    ({"target": {**TARGET, "hidden_size": 16}}, "hidden-size-mismatch"),
    ({"head": layers(2, 5, 11)}, "aux-layers-outside (layers [2, 5, 11]"),
    ({"head": layers(2, 5, -1)}, "aux-layers-outside"),
    ({"head": layers(2, 5, "x")}, "config-damaged"),
    ({"head": layers(2, 5, 5)}, "aux-layers-collide (layers [2, 5, 5]"),
    ({"head": UNLISTED, "target": {**TARGET, "num_hidden_layers": 6}},
     "aux-layers-collide (layers [2, 3, 3]"),
    ({"head": layers(2, 5), "tensors": HEAD_TENSORS}, "fc-width"),
    ({"tensors": NO_MASK}, "head-without-mask"),
    ({"tensors": {**HEAD_TENSORS, "mask_hidden": [1, 8]}}, "mask-shape"),
    ({"target": {**TARGET, "vocab_size": 999}, "head": {**HEAD, "vocab_size": 1024}},
     "vocabulary-mismatch (of the head 1024, of the target 999)"),
    ({"head": without(HEAD, "ptd_token_id")}, "placeholder-missing")
])  # fmt: skip
def test_head_and_target(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    environment = pair(tmp_path, **change)
    reported = pair_refusal(environment)
    assert what in reported
    assert reported.startswith("head and target do not match: " if what else "")
    assert bool(reported) is bool(what)
    streamed = {**environment, "SM_VLLM_LOAD_FORMAT": "runai_streamer"}
    assert pair_refusal(streamed) == reported, "folders are compared with any loader"
    assert pair_refusal({**environment, "SM_VLLM_LOAD_FORMAT": "dummy"}) == ""


@pytest.mark.parametrize("more", [
    {"SM_VLLM_MODEL": "org/target"},
    {SPECULATION: json.dumps({"method": "eagle3", "model": "org/head"})},
    {SPECULATION: json.dumps({"method": "eagle3"})},
], ids=str)  # fmt: skip
def test_a_model_of_the_hub_is_not_compared(tmp_path: Path, more: dict[str, str]) -> None:
    environment = pair(tmp_path, target={**TARGET, "hidden_size": 16})
    assert pair_refusal(environment) != ""
    check_pair({**environment, **more})


@pytest.mark.parametrize(
    ("method", "is_compared"), [("eagle3", True), ("eagle", False), ("draft_model", False)]
)
def test_only_heads_of_eagle3_are_compared(tmp_path: Path, method: str, is_compared: bool) -> None:
    environment = pair(tmp_path, target={**TARGET, "hidden_size": 16})
    assert bool(pair_refusal(environment, method=method)) is is_compared
    (tmp_path / "target" / "config.json").unlink()
    assert pair_refusal(environment, method=method) == "", "there is nothing to compare"


BUILT = {
    "pair": "a/target+p-eagle",
    "target": "a/target",
    "drafter": "a/head",
    "method": "eagle3",
    "parallel_drafting": True,
    "k": 7,
    "facts": {
        "target": {"architecture": "Llama", "hidden_size": 8, "num_hidden_layers": 10},
        "drafter": {"num_hidden_layers": 4},
    },
}


def built_for(plan: Plan) -> dict[str, Any]:
    return pair_document(plan, CATALOG.targets.get(plan.target.id))


def drafting(model: str = "a/head", **more: Any) -> dict[str, str]:
    config = {"method": "eagle3", "model": model, "num_speculative_tokens": 7, PARALLEL: True}
    return {SPECULATION: json.dumps({**config, **more})}


def image_refusal(folder: Path, chosen: dict[str, str], built: Any = BUILT) -> str:
    """The refusal of the environment by an image built for ``built``; "" if it is accepted."""
    file = folder / "pair.json"
    file.write_text(built if isinstance(built, str) else json.dumps(built))
    try:
        check_built_for({"SM_VLLM_MODEL": "a/target", **chosen}, file)
    except InvalidEnvironment as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("chosen", "why"), [
    (drafting(), ""),
    ({"SM_VLLM_MODEL": "A/Target", **drafting()}, ""),
    (drafting(num_speculative_tokens=3), ""),
    ({"SM_VLLM_MAX_MODEL_LEN": "4096", **drafting()}, ""),
    ({}, ""),
    ({"SM_VLLM_MODEL": "s3://bucket/target/", **drafting("s3://bucket/drafter/")}, ""),
    ({"SM_VLLM_MODEL": "b/other", **drafting()}, "SM_VLLM_MODEL is b/other"),
    (drafting("b/head"), f'"model" of {SPECULATION} is b/head'),
    (drafting(method="draft_model"), "the method draft_model, not eagle3"),
    ({SPECULATION: '{"method": "ngram", "num_speculative_tokens": 3}'}, "method ngram"),
    (drafting(parallel_drafting=False), "has another parallel_drafting"),
])  # fmt: skip
def test_image_serves_its_own_pair_only(tmp_path: Path, chosen: dict[str, str], why: str) -> None:
    reported = image_refusal(tmp_path, chosen)
    assert bool(reported) is bool(why)
    assert why in reported
    assert reported.startswith("this image was built for a/target+p-eagle, and " if why else "")


def test_an_image_without_a_drafter_refuses_speculation(tmp_path: Path) -> None:
    plain = {**BUILT, "pair": "a/target", "drafter": None, "method": None, PARALLEL: None}
    assert image_refusal(tmp_path, {}, plain) == ""
    assert "has the method eagle3, not None" in image_refusal(tmp_path, drafting(), plain)


@pytest.mark.parametrize(("target", "head", "why"), [
    ({**TARGET, "architectures": ["Llama"]}, {**HEAD, "num_hidden_layers": 4}, ""),
    ({"text_config": TARGET}, HEAD, ""),
    ({}, HEAD, ""),
    ({**TARGET, "hidden_size": 16}, HEAD, "whose hidden_size is 16, not 8"),
    ({**TARGET, "num_hidden_layers": 6}, HEAD, "whose num_hidden_layers is 6, not 10"),
    ({"text_config": {"hidden_size": 16}}, HEAD, "whose hidden_size is 16, not 8"),
    ({"architectures": ["Qwen"]}, HEAD, "whose architecture is Qwen, not Llama"),
    (TARGET, {**HEAD, "num_hidden_layers": 1}, "whose num_hidden_layers is 1, not 4"),
])  # fmt: skip
def test_models_in_folders_are_identified_by_their_config(
    tmp_path: Path, target: dict[str, Any], head: dict[str, Any], why: str
) -> None:
    chosen = pair(tmp_path, target=target, head=head)
    assert bool(image_refusal(tmp_path, chosen)) is bool(why)
    assert why in image_refusal(tmp_path, chosen)
    for unknown in ("", "{", "[]", "{}"):
        assert image_refusal(tmp_path, chosen, unknown) == ""


@pytest.mark.parametrize("name", [name for name in ALL_PAIRS if not name.startswith("tiny")])
def test_an_image_of_the_catalogue_accepts_its_own_pair(tmp_path: Path, name: str) -> None:
    plan = plan_for(name)
    assert image_refusal(tmp_path, plan.environment, built_for(plan)) == ""
    assert code_variables(plan.environment) == (), "a local engine takes each of its variables"


@pytest.mark.thorough
def test_the_container_refuses_before_it_starts_the_engine(tmp_path: Path) -> None:
    container = container_in(tmp_path / "engine")
    image = tmp_path / "image"
    shutil.copytree(SERVE, image / "peagle_serve", ignore=shutil.ignore_patterns("__pycache__"))
    (image / "pair.json").write_text(json.dumps(BUILT))
    refused = container.run({"SM_VLLM_MODEL": "b/other"}, serve=image / "peagle_serve")
    taken = container.run({"SM_VLLM_MODEL": "a/target"}, serve=image / "peagle_serve")
    assert refused.returncode == 2
    (reported,) = documents(refused)
    assert reported["cause"] == "environment"
    assert "built for a/target+p-eagle, and SM_VLLM_MODEL is b/other" in reported["message"]
    assert taken.returncode == 1, "exit code of the recorder"


# The container and the pairs that ``peagle check`` refuses: what it stops itself, before vLLM is
CORPUS = {broken.name: broken for broken in (*HEADS, *REST)}
LOG_LINES: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "crashes" / "pairs.json").read_text(encoding="utf-8")
)
"""The last lines of vLLM 0.28.0's tracebacks for pairs of the corpus."""


@pytest.mark.thorough
@pytest.mark.parametrize("broken", CORPUS.values(), ids=lambda broken: broken.name)
def test_container_refuses_broken_pair_with_code_of_rule(broken: Broken, tmp_path: Path) -> None:
    case = broken.make(tmp_path)
    reported = refusal(case)
    if broken.name in SETTINGS:
        assert SETTINGS[broken.name] in str(reported)
    elif reported:
        code = reported.removeprefix("head and target do not match: ").partition(" ")[0]
        assert code in {finding.code for finding in check(case) if finding.level == "error"}
    else:
        assert broken.code not in PAIR_CODES or broken.name in ONLY_IN_THE_TOOLKIT


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOG_LINES)
def test_every_error_of_vllm_has_a_cause_and_a_fix(name: str) -> None:
    crash = parse_crash(LOG_LINES[name])
    assert crash.cause
    assert crash.fix


@pytest.mark.thorough
@pytest.mark.parametrize("name", trials.GOOD)
def test_a_working_pair_is_accepted(name: str, tmp_path: Path) -> None:
    case = trials.GOOD[name].make(tmp_path)
    assert refusal(case) is None


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["p-eagle", "eagle3"])
@pytest.mark.parametrize("short", sorted(folder.name for folder in GEOMETRY.glob("*/")))
def test_no_pair_of_the_catalogue_is_refused(short: str, head: str, tmp_path: Path) -> None:
    assert refusal(geometry_case(tmp_path, short, head)) is None
