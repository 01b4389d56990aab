"""The build context of an image, and nothing else in it; names of images."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.data import entrypoint_folder
from peagle.errors import UserError
from peagle.planning import Plan
from peagle.render import render
from peagle.render.image import (
    LAYER_LIMIT_BYTES,
    Copied,
    Download,
    Recipe,
    content_digest,
    context_files,
    dockerfile,
    labels,
    parse_tag,
    pinned_base,
    read_image_address,
    split_image,
)
from tests.support import raises_code
from tests.unit.rendering.plans import plan_of

GPU = Recipe("gpu", "registry.example.com/vllm@sha256:" + "a" * 64, None)
DIGEST = "sha256:" + "a" * 64
ADDRESS = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny@sha256:{'0a' * 32}"


def instructions(text: str) -> list[tuple[str, str]]:
    joined = text.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and line[0] != "#"]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines]


def read_labels(text: str) -> dict[str, str]:
    (line,) = [words for name, words in instructions(text) if name == "LABEL"]
    return dict(word.split("=", 1) for word in shlex.split(line.replace("\\$", "$")))


def with_licence(plan: Plan, licence: str) -> Plan:
    return plan.model_copy(update={"target": plan.target.model_copy(update={"licence": licence})})


def test_the_image_has_a_content_digest_only_for_a_pinned_base() -> None:
    plan = plan_of("from-hub")
    content = f'PEAGLE_IMAGE_CONTENT="sha256:{content_digest(plan, GPU)}"'
    assert content in dict(instructions(dockerfile(plan, GPU)))["ENV"]
    by_tag = replace(GPU, base="registry.example.com/vllm:1")
    assert 'PEAGLE_IMAGE_CONTENT=""' in dockerfile(plan, by_tag), "and not that of a base of ours"
    engine = replace(GPU, runtime="cpu", base="peagle-engine-cpu:0.28.0-3f2a9c1b7d20")
    assert 'CONTENT="sha256:' in dockerfile(plan, engine), "its tag ends in a digest"


def test_the_context_contains_the_entrypoint_and_is_small() -> None:
    files = {file.path: file.content for file in context_files(plan_of("from-hub"), GPU)}
    serve = entrypoint_folder()
    sources = {f"peagle/peagle_serve/{path.relative_to(serve).as_posix()}": path.read_bytes()
               for path in serve.rglob("*")
               if path.is_file() and "__pycache__" not in path.parts}  # fmt: skip
    assert {path: text for path, text in files.items() if "peagle_serve/" in path} == sources
    assert "peagle/peagle_serve/plugin/peagle_serve-1.dist-info/entry_points.txt" in sources
    assert sum(map(len, files.values())) < LAYER_LIMIT_BYTES


def test_a_label_is_read_literally_and_an_unknown_value_clears_the_bases() -> None:
    licence = """my "own" $HOME \\ licence's\nend"""
    text = dockerfile(with_licence(plan_of("from-hub"), licence), Recipe("gpu", "base", None))
    written = read_labels(text)
    assert written["peagle.licence.target"] == """my "own" $HOME \\ licence's end"""
    assert written["org.opencontainers.image.base.digest"] == ""
    assert written["org.opencontainers.image.revision"] == ""


@pytest.mark.thorough
def test_the_content_digest_covers_the_content_only() -> None:
    plan = plan_of("uploaded")
    other = plan.model_copy(update={"max_model_len": 1024})
    digest = content_digest(plan, GPU)
    assert content_digest(other, GPU) == digest
    copied = Copied("weights/model/target", "/data", ("config.json",), "1")
    baked = replace(GPU, weights=(copied,))
    different = {
        digest,
        content_digest(plan_of("from-hub"), GPU),
        content_digest(plan, replace(GPU, base="other")),
        content_digest(plan, replace(GPU, runtime="cpu")),
        content_digest(with_licence(plan, "another"), GPU),
        content_digest(plan, baked),
        content_digest(plan, replace(GPU, weights=(replace(copied, digest="2"),))),
    }
    assert len(different) == 7
    elsewhere = replace(GPU, weights=(replace(copied, folder="/elsewhere"),))
    assert content_digest(plan, elsewhere) == content_digest(plan, baked)
    assert labels(plan, GPU)["peagle.content"] == digest


def test_weights_stay_out_unless_asked_for() -> None:
    plan = plan_of("uploaded")
    assert "weights" not in dockerfile(plan, GPU).replace("peagle.weights", "")
    copied = Copied("weights/model/target", "/data/target", ("config.json",), "1")
    baked = dockerfile(plan, replace(GPU, weights=(copied,)))
    assert ("COPY", "weights /opt/peagle/ml") in instructions(baked)
    assert 'PEAGLE_ML_ROOT="/opt/peagle/ml"' in baked
    assert "/data" not in baked


def test_only_the_named_files_of_the_hub_are_downloaded_at_one_commit() -> None:
    plan, commit = plan_of("from-hub"), "a" * 40
    download = Download("openai/gpt-oss-20b", "main", commit, ("config.json", "model [1].txt"))
    made = instructions(dockerfile(plan, replace(GPU, weights=(download,))))
    (run,) = [json.loads(words) for name, words in made if name == "RUN"]
    assert run[3:] == [
        "openai/gpt-oss-20b", commit, "main", "/opt/peagle/ml/hub", "config.json", "model [1].txt",
    ]  # fmt: skip
    compile(run[2], "<download>", "exec")
    assert "RUN" not in [name for name, _ in instructions(dockerfile(plan, GPU))]


def test_a_known_digest_pins_the_base() -> None:
    digest, catalog = "sha256:" + "b" * 64, load_catalog()
    runtimes = [r.model_copy(update={"digest": digest}) for r in catalog.runtimes.runtimes]
    table = catalog.runtimes.model_copy(update={"runtimes": tuple(runtimes)})
    plan = plan_of("from-hub")
    files = render("dockerfile", plan, replace(catalog, runtimes=table))
    (rendered,) = [file.content.decode() for file in files if file.path == "Dockerfile"]
    assert f"ARG BASE={plan.runtime.image}@{digest}\n" in rendered
    assert pinned_base(plan, table) == f"{plan.runtime.image}@{digest}"
    assert read_labels(rendered)["org.opencontainers.image.base.digest"] == digest


@pytest.mark.parametrize("text", [
    "", ":", "a:", ":a", "a b", "a\n", "A:1", "a//b", "/a", "a/", "-a", "a@b", "http://x/y",
    "a:" + "x" * 129, "a" * 600, "ä", "a:1:2", f"a@{DIGEST}0", "x\nRUN rm -rf /", "a${B}",
])  # fmt: skip
def test_an_invalid_image_name_is_refused(text: str) -> None:
    with raises_code("invalid-image-name", UserError):
        split_image(text)
    with raises_code("invalid-image-name", UserError):
        dockerfile(plan_of("uploaded"), Recipe("gpu", text, None))


@pytest.mark.parametrize(
    "text",
    [
        "myrepo", "team/repo", "host:5000/r", "r:", ":x", "UPPER:1", "ab:1\n", DIGEST,
        "r:x",  # ECR requires two characters
        "a__b:1",  # valid for Docker, not for ECR
        "host:5000/r:1", "localhost/r:1", "1.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:1",
    ],
)  # fmt: skip
def test_a_tag_that_docker_or_ecr_would_refuse_is_refused(text: str) -> None:
    with raises_code("invalid-image-name", UserError):
        parse_tag(text)


def test_the_address_is_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "image.txt"
    with raises_code("image-address", UserError) as missing:
        read_image_address(file)
    assert missing.value.command[-2:] == ("--address-file", str(file))
    file.write_text(f"{ADDRESS}\n")
    assert read_image_address(file) == ADDRESS
    for text in (ADDRESS.partition("@")[0], "", "x" * 2000):
        file.write_text(text)
        with pytest.raises(UserError):
            read_image_address(file)
