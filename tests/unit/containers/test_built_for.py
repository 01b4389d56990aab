"""An image refuses pairs other than the one that it was built for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from peagle.data import data_folder
from peagle.planning import Plan
from peagle.render.image import pair_document
from peagle_serve.checks import PAIR_FILE, check_built_for
from peagle_serve.contract import InvalidEnvironment
from tests.unit.containers.recording import SERVE, container_in, documents
from tests.unit.containers.weights import HEAD, TARGET, pair
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, plan_for, plan_of

GEOMETRY = Path(__file__).resolve().parents[2] / "geometry"
TINY = data_folder("model_catalog") / "peagle" / "tiny"
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
SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"


def built_for(plan: Plan) -> dict[str, Any]:
    return pair_document(plan, CATALOG.targets.get(plan.target.id))


def speculation(model: str = "a/head", **more: Any) -> str:
    config = {"method": "eagle3", "model": model, "num_speculative_tokens": 7}
    return json.dumps({**config, "parallel_drafting": True, **more})


def environment(**more: str) -> dict[str, str]:
    return {"SM_VLLM_MODEL": "a/target", SPECULATION: speculation(), **more}


def refusal(folder: Path, chosen: dict[str, str], built: Any = BUILT) -> str:
    """The refusal of the environment by an image built for ``built``; "" if it is accepted."""
    file = folder / "pair.json"
    file.write_text(built if isinstance(built, str) else json.dumps(built))
    try:
        check_built_for(chosen, file)
    except InvalidEnvironment as error:
        return f"{error.message} ({error.fix})"
    return ""


@pytest.mark.parametrize(
    "chosen",
    [
        environment(),
        environment(SM_VLLM_MODEL="A/Target"),
        environment(**{SPECULATION: speculation(num_speculative_tokens=3)}),
        environment(SM_VLLM_MAX_MODEL_LEN="4096"),
        {"SM_VLLM_MODEL": "a/target"},
        environment(SM_VLLM_MODEL="s3://bucket/target/"),
        environment(**{SPECULATION: speculation("s3://bucket/drafter/")}),
    ],
    ids=[
        "its own",
        "other case",
        "another K",
        "another setting",
        "no speculation",
        "target in S3",
        "drafter in S3",
    ],
)
def test_the_images_own_pair_is_accepted(tmp_path: Path, chosen: dict[str, str]) -> None:
    assert refusal(tmp_path, chosen) == ""


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"SM_VLLM_MODEL": "b/other"}, "SM_VLLM_MODEL is b/other"),
        ({SPECULATION: speculation("b/head")}, f'"model" of {SPECULATION} is b/head'),
        ({SPECULATION: speculation(method="draft_model")}, "the method draft_model, not eagle3"),
        ({SPECULATION: '{"method": "ngram", "num_speculative_tokens": 3}'}, "method ngram"),
        ({SPECULATION: speculation(parallel_drafting=False)}, "is without parallel_drafting"),
    ],
)
def test_another_pair_is_refused(tmp_path: Path, chosen: dict[str, str], why: str) -> None:
    reported = refusal(tmp_path, environment(**chosen))

    assert reported.startswith("this image was built for a/target+p-eagle, and ")
    assert why in reported
    assert reported.endswith("or set this image's pair)")


def test_an_image_without_a_drafter_refuses_speculation(tmp_path: Path) -> None:
    plain = {**BUILT, "pair": "a/target", "drafter": None, "method": None,
             "parallel_drafting": None}  # fmt: skip

    assert refusal(tmp_path, {"SM_VLLM_MODEL": "a/target"}, plain) == ""
    assert "SM_VLLM_SPECULATIVE_CONFIG is set" in refusal(tmp_path, environment(), plain)


@pytest.mark.parametrize(
    ("target", "head", "why"),
    [
        ({**TARGET, "architectures": ["Llama"]}, {**HEAD, "num_hidden_layers": 4}, ""),
        ({"text_config": TARGET}, HEAD, ""),
        ({}, HEAD, ""),
        ({**TARGET, "hidden_size": 16}, HEAD, "whose hidden size is 16, not 8"),
        ({**TARGET, "num_hidden_layers": 6}, HEAD, "whose number of layers is 6, not 10"),
        ({"text_config": {"hidden_size": 16}}, HEAD, "whose hidden size is 16, not 8"),
        ({"architectures": ["Qwen"]}, HEAD, "whose architecture is Qwen, not Llama"),
        (TARGET, {**HEAD, "num_hidden_layers": 1}, "whose number of layers is 1, not 4"),
    ],
)
def test_models_in_folders_are_identified_by_their_config(
    tmp_path: Path, target: dict[str, Any], head: dict[str, Any], why: str
) -> None:
    reported = refusal(tmp_path, pair(tmp_path, target=target, head=head))

    assert bool(reported) is bool(why)
    assert why in reported


@pytest.mark.parametrize("built", ["", "{", "[]", "{}", {**BUILT, "facts": None}])
def test_unknown_facts_are_not_compared(tmp_path: Path, built: Any) -> None:
    assert refusal(tmp_path, pair(tmp_path, target={"hidden_size": 1}), built) == ""


def test_outside_of_an_image_there_is_no_pair_file(tmp_path: Path) -> None:
    assert SERVE.parent / "pair.json" == PAIR_FILE
    assert not PAIR_FILE.exists()
    check_built_for(environment(SM_VLLM_MODEL="anything/else"))


@pytest.mark.parametrize("name", [name for name in ALL_PAIRS if not name.startswith("tiny")])
def test_an_image_of_the_catalogue_accepts_its_own_pair(tmp_path: Path, name: str) -> None:
    plan = plan_for(name)

    assert refusal(tmp_path, plan.environment, built_for(plan)) == ""


@pytest.mark.parametrize("short_name", sorted(p.name for p in GEOMETRY.iterdir() if p.is_dir()))
def test_an_image_identifies_real_models_by_their_config(tmp_path: Path, short_name: str) -> None:
    folder = GEOMETRY / short_name
    plan = plan_for(short_name)
    assert plan.drafter is not None
    head = str(folder / plan.drafter.name)
    chosen = {"SM_VLLM_MODEL": str(folder / "target"), SPECULATION: speculation(head)}

    built = {**built_for(plan), "parallel_drafting": True}

    assert refusal(tmp_path, chosen, built) == ""
    assert "whose" in refusal(tmp_path, {**chosen, "SM_VLLM_MODEL": str(TINY / "target")}, built)


def test_an_image_of_the_tiny_pair_refuses_its_other_head(tmp_path: Path) -> None:
    built = built_for(plan_of("uploaded"))
    chosen = {"SM_VLLM_MODEL": str(TINY / "target")}

    assert (
        refusal(tmp_path, {**chosen, SPECULATION: speculation(str(TINY / "p-eagle"))}, built) == ""
    )
    other = {**chosen, SPECULATION: speculation(str(TINY / "eagle3"))}
    assert "whose number of layers is 1, not 4" in refusal(tmp_path, other, built)


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
