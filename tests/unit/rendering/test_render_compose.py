"""``render compose``: one service that builds its image, with every value literal."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from peagle.data import data_folder
from peagle.errors import Unsupported
from peagle.planning import Plan
from peagle.render import RenderedFile, render
from peagle.render.formats.compose import compose_text
from tests.support import raises_code
from tests.unit.rendering.plans import CATALOG, limited, plan_of, to_zero

NASTY = "$HOME ${A:-b} $$ 'it''s' \"x\" \\ \t\n# no\n: - {\u00e9} \U0001f600 %s `c` y"


def files(plan: Plan) -> dict[str, RenderedFile]:
    return {file.path: file for file in render("compose", plan, CATALOG)}


def service(plan: Plan) -> dict[str, Any]:
    described: dict[str, dict[str, Any]]
    described = yaml.safe_load(files(plan)["compose.yaml"].content)["services"]
    (definition,) = described.values()
    return definition


_VARIABLE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<named>[_a-zA-Z]\w*)|\{(?P<braced>[_a-zA-Z]\w*)(?::-(?P<default>[^}]*))?\})"
    r"|(?P<invalid>\$)"
)


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """A value as Compose reads it, by the rules of the Compose specification."""

    def value(match: re.Match[str]) -> str:
        assert match["invalid"] is None, text
        if match["escaped"]:
            return "$"
        return variables.get(match["named"] or match["braced"]) or match["default"] or ""

    return _VARIABLE.sub(value, text)


def test_the_image_is_built_of_the_context_beside_the_file() -> None:
    plan = plan_of("uploaded")
    written, described = files(plan), service(plan)
    context = {
        file.path: file.content for file in render("dockerfile", plan, CATALOG)
        if file.path not in ("README.md", "plan.json")
    }  # fmt: skip
    assert described["build"] == {"context": "./image"}
    assert re.fullmatch(r"peagle-tiny:[\d.]+-gpu-[0-9a-f]{12}", described["image"])
    assert {
        path.removeprefix("image/"): file.content
        for path, file in written.items()
        if path.startswith("image/")
    } == context


@pytest.mark.thorough
def test_another_content_of_the_image_has_another_name() -> None:
    plan = plan_of("uploaded")
    image = plan.runtime.image.replace("763104351884", "123456789012")
    other = plan.model_copy(update={"pair": "peagle/tiny+another"})
    assert service(other)["image"] != service(plan)["image"]
    changed = plan.model_copy(update={"runtime": plan.runtime.model_copy(update={"image": image})})
    assert (service(changed)["image"], "build" in service(changed)) == (image, False)
    assert not [path for path in files(changed) if path.startswith("image/")]


@pytest.mark.thorough
def test_weights_are_mounted_where_the_engine_reads_them() -> None:
    def mounts(shape: str) -> dict[str, str]:
        volumes = service(plan_of(shape))["volumes"]
        assert all(each["read_only"] for each in volumes if each["type"] == "bind")
        return {each["target"]: each["source"] for each in volumes if each["type"] == "bind"}

    tiny = data_folder("model_catalog") / "peagle" / "tiny"
    assert mounts("uploaded") == {
        f"/opt/ml/model/{part}": str((tiny / folder).resolve())
        for part, folder in {"target": "target", "drafter": "p-eagle"}.items()
    }
    custom = mounts("own-folder")
    (source,) = custom.values()
    folder = str(Path('/data/my head\'s "best"').resolve())
    assert interpolated(source, {}) == folder
    assert mounts("one-prefix") == {"/opt/ml/model": "./model"}
    assert mounts("two-prefixes") == {
        "/opt/ml/model": "./model",
        "/opt/ml/additional-model-data-sources/drafter": "./drafter",
    }
    assert mounts("from-hub") == mounts("baked") == {}
    readme = files(plan_of("two-prefixes"))["README.md"].content.decode()
    assert "aws s3 sync s3://models/qwen3-8b/ model/\n" in readme
    assert "aws s3 sync s3://heads/qwen3-8b/ drafter/\n" in readme


def test_nasty_values_are_literal() -> None:
    assert_literal(NASTY)


def assert_literal(value: str) -> None:
    text = compose_text(
        f"heading {value}", name="a", image=value, environment={"A": value}, mounts={"/x": value},
        address="1", start_seconds=1, build=value, labels={"l": value},
    )  # fmt: skip
    (definition,) = yaml.safe_load(text)["services"].values()
    variables = {"HOME": "/root", "A": "leaked"}
    read = [
        definition["image"], definition["build"]["context"], definition["environment"]["A"],
        definition["labels"]["l"], definition["volumes"][1]["source"],
    ]  # fmt: skip
    assert [interpolated(item, variables) for item in read] == [value] * 5


def test_texts_that_go_reads_as_numbers_are_quoted() -> None:
    """Compose is written in Go, whose YAML knows more numbers than Python's."""
    variables = {"V1": "1e3", "V2": "0o7", "V3": "y"}
    text = compose_text(
        "x", name="a", image="b", environment=variables, mounts={}, address="1", start_seconds=1
    )
    assert dict(re.findall(r"^ +(V\d): '(.*)'$", text, re.MULTILINE)) == variables


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(plan_of, "two-instances"), "2"),
        (partial(plan_of, "scaled"), "nothing to scale"),
        (to_zero, "nothing to scale"),
        (limited, "--ttl and --budget"),
        (partial(plan_of, "rolled-out-at-once"), "--rollout"),
        (partial(plan_of, "observed"), "--capture-data"),
        (partial(plan_of, "company"), "subnets"),
        (partial(plan_of, "streamed"), "weights_by stream"),
    ],
    ids=["instances", "scaling", "zero", "end", "rollout", "capture", "network", "stream"],
)
def test_what_only_sagemaker_does_is_refused(make: Callable[[], Plan], words: str) -> None:
    with raises_code("format-unsupported", Unsupported) as refused:
        render("compose", make(), CATALOG)
    assert words in refused.value.message
    assert "cloudformation" in refused.value.fix
