"""New snapshots from AWS: sources, changes, and parts that fail."""

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.client import Aws
from peagle.aws.refresh import (
    DATA_FILE,
    PARTS,
    Change,
    refresh_tables,
    sdk_images,
    table_changes,
    with_images,
)
from peagle.catalog import load_catalog
from peagle.catalog.tables import InstanceTable, Runtime, RuntimeTable
from peagle.catalog.writing import Tables
from peagle.errors import UserError
from tests.support import raises_code
from tests.unit.aws.network import denied
from tests.unit.aws.world import World

CATALOG = load_catalog()
TABLES = Tables(CATALOG.runtimes, CATALOG.instances)


def changes_to(
    *, runtimes: RuntimeTable | None = None, instances: InstanceTable | None = None
) -> tuple[Change, ...]:
    """The differences of these tables from the bundled ones."""
    after = Tables(runtimes or CATALOG.runtimes, instances or CATALOG.instances)
    return tuple(table_changes(TABLES, after))


def entry(version: str, **changed: Any) -> dict[str, Any]:
    """A version in the SDK's table."""
    return {
        "container_version": {"gpu": "cu130-ubuntu24.04-sagemaker"},
        "py_versions": ["py312"],
        "registries": {"us-east-1": "763104351884", "eu-north-9": "123456789012"},
        "repository": "vllm",
        "tag_prefix": version,
        **changed,
    }


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install an SDK with these versions of vLLM."""

    def install(text: str | None = None, **versions: dict[str, Any]) -> None:
        document = {
            "inference": {"versions": {v.replace("_", "."): e for v, e in versions.items()}}
        }
        path = tmp_path / DATA_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document) if text is None else text)

        class Distribution:
            version = "9.9.9"

            def locate_file(self, name: str) -> Path:
                return tmp_path / name

        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())

    return install


def connected(world: World) -> Callable[[str], Aws]:
    return lambda region: world.aws


def test_a_new_version_comes_with_tag_cuda_ami_and_regions(sdk: Callable[..., None]) -> None:
    sdk(**{"0_31_0": entry("0.31.0")})
    images = sdk_images(CATALOG.runtimes)
    assert images.source == "sagemaker-core 9.9.9, image_uri_config/vllm.json"
    assert images.runtimes["0.31.0"] == Runtime(
        vllm="0.31.0",
        repository="vllm",
        tag="0.31.0-gpu-py312-cu130-ubuntu24.04-sagemaker",
        cuda="13.0",
        ami="al2023-ami-sagemaker-inference-gpu-4-1",
        regions=("eu-north-9", "us-east-1"),
    )
    new = with_images(CATALOG.runtimes, images)
    assert new.runtimes[-1].vllm == "0.31.0"
    assert new.default == CATALOG.runtimes.default
    regions = list(new.accounts)
    assert regions[regions.index("eu-north-9") - 1] == "eu-north-1"
    changes = {(change.entry, change.key): change.after for change in changes_to(runtimes=new)}
    assert changes[("accounts", "eu-north-9")] == "123456789012"
    assert changes[("vLLM 0.31.0", "regions")] == "eu-north-9, us-east-1"


def test_a_new_tag_does_not_keep_the_old_digest(sdk: Callable[..., None]) -> None:
    pinned = [r.model_copy(update={"digest": "sha256:" + "a" * 64})
              for r in CATALOG.runtimes.runtimes]  # fmt: skip
    table = CATALOG.runtimes.model_copy(update={"runtimes": tuple(pinned)})
    old = next(r for r in pinned if r.vllm == "0.28.0")
    same = old.tag.removeprefix("0.28.0-gpu-py312-")
    for container, digest in ((same, old.digest), (f"{same}-v2", None)):
        sdk(**{"0_28_0": entry("0.28.0", container_version={"gpu": container})})
        new = {r.vllm: r for r in with_images(table, sdk_images(table)).runtimes}
        assert new["0.28.0"].digest == digest
        assert new["0.27.1"].digest is not None


def test_a_new_cuda_version_takes_the_ami_of_its_major_version(sdk: Callable[..., None]) -> None:
    of = {"0_31_0": "cu132-x", "0_31_1": "cu128-x", "0_31_2": "cu140-x", "0_31_3": "rocm-x"}
    sdk(**{v: entry(v, container_version={"gpu": c}) for v, c in of.items()})
    images = sdk_images(CATALOG.runtimes)
    assert {v: (r.cuda, r.ami[-7:]) for v, r in images.runtimes.items()} == {
        "0.31.0": ("13.2", "gpu-4-1"),
        "0.31.1": ("12.8", "gpu-3-1"),
    }
    assert images.unread == ("0.31.2", "0.31.3")


def test_facts_beyond_the_sdk_are_kept(sdk: Callable[..., None]) -> None:
    sdk(**{"0_28_0": entry("0.28.0")})
    new = with_images(CATALOG.runtimes, sdk_images(CATALOG.runtimes))
    by_version = {runtime.vllm: runtime for runtime in new.runtimes}
    assert by_version["0.28.0"].cpu == "works"
    assert by_version["0.28.0"].regions == ("eu-north-9", "us-east-1")
    assert by_version["0.19.0"] == CATALOG.runtimes.runtimes[0]
    gone = {c.key: c.after for c in changes_to(runtimes=new) if c.entry == "vLLM 0.28.0"}
    assert gone["regions"] == "eu-north-9, us-east-1"


def test_without_the_sdk_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with raises_code("sdk-missing", UserError) as refused:
        sdk_images(CATALOG.runtimes)
    assert refused.value.command == ("pip", "install", "peagle-toolkit[sagemaker]")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"inference": {}}', '{"inference": []}'])
def test_an_unreadable_table_is_an_error(sdk: Callable[..., None], text: str) -> None:
    sdk(text)
    with raises_code("sdk-unreadable", UserError):
        sdk_images(CATALOG.runtimes)


def test_an_image_that_is_not_in_the_region_keeps_its_digest(world: World) -> None:
    digest = "sha256:" + "a" * 64
    away = CATALOG.runtimes.runtimes[0].model_copy(update={"regions": (), "digest": digest})
    table = CATALOG.runtimes.model_copy(update={"runtimes": (away,)})
    tables = Tables(table, CATALOG.instances)
    refreshed = refresh_tables(tables, ["digests"], [world.aws.region], lambda region: world.aws)
    assert refreshed.tables == tables
    (finding,) = refreshed.findings
    assert finding.code == "digests-unknown"
    assert away.vllm in finding.message


def test_prices_of_the_requested_regions(world: World) -> None:
    world.cloud.price = 1.5
    refreshed = refresh_tables(TABLES, ["prices"], ["us-east-1"], connected(world))
    changes = changes_to(instances=refreshed.tables.instances)
    assert [(c.entry, c.key) for c in changes] == [("ml.g5.xlarge", "price in us-east-1")]
    assert changes[0].before == "$1.408 (2026-07-01)"
    assert changes[0].after.startswith("$1.5 (")
    assert not changes[0].confirmed
    assert refreshed.tables.instances.checked > CATALOG.instances.checked
    assert refreshed.tables.runtimes == CATALOG.runtimes
    world.cloud.price = 1.408  # the cache of prices is not read
    refreshed = refresh_tables(TABLES, ["prices"], ["us-east-1"], connected(world))
    (change,) = changes_to(instances=refreshed.tables.instances)
    assert change.confirmed


def test_a_denied_part_stays_unchanged_and_the_others_continue(
    world: World, sdk: Callable[..., None]
) -> None:
    sdk(**{"0_31_0": entry("0.31.0")})
    world.cloud.before = denied("get_products")
    refreshed = refresh_tables(TABLES, list(PARTS), ["us-east-1"], connected(world))
    left = {f.where: f.message for f in refreshed.findings if f.code == "not-refreshed"}
    assert set(left) == set(refreshed.failed) == {"prices"}
    assert "access denied: pricing:" in left["prices"]
    assert refreshed.tables.runtimes.runtimes[-1].vllm == "0.31.0"
    assert refreshed.tables.instances == CATALOG.instances
