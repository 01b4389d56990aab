"""Archives of compiled code are restored only if their SHA-256 is pinned, and only to a folder that
nobody else can write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle_serve.contract import InvalidEnvironment, pins_in, settings_of
from peagle_serve.warm.caches import cache_folder, make_cache_folder
from tests.unit.containers.artifacts import archive_of, member, with_archive
from tests.unit.containers.warm_worlds import World, is_cold, warnings


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.thorough
def test_a_pinned_archive_is_restored(world: World) -> None:
    manifest = world.collected()

    entries, given = world.start(PEAGLE_WARM_SHA256=f"{'0' * 64},{manifest.sha256}")

    assert warnings(entries) == []
    assert manifest.key in given["VLLM_CACHE_ROOT"]


@pytest.mark.thorough
def test_without_a_pin_nothing_is_restored(world: World) -> None:
    world.collected()

    entries, given = world.start(PEAGLE_WARM_SHA256="")

    (reported,) = warnings(entries)
    assert "an archive is code, and PEAGLE_WARM_SHA256 does not say which" in reported
    assert is_cold(given)
    assert not world.cache.exists()


@pytest.mark.thorough
def test_an_archive_that_was_replaced_is_not_restored(world: World) -> None:
    """Who may write the bucket writes a manifest that matches the archive."""
    manifest = world.collected()
    planted = archive_of([member("triton/k/k.so", b"planted code")])
    other = with_archive(world.artifacts, manifest, planted, files=1, unpacked_bytes=12)

    entries, given = world.start(PEAGLE_WARM_SHA256=manifest.sha256)

    (reported,) = warnings(entries)
    assert f"has the SHA-256 {other.sha256}, which PEAGLE_WARM_SHA256 does not list" in reported
    assert is_cold(given)


@pytest.mark.thorough
def test_a_manifest_that_lies_about_its_archive_is_not_believed(world: World) -> None:
    manifest = world.collected()
    planted = archive_of([member("triton/k/k.so", b"planted code")])
    (world.artifacts / f"{manifest.key}.tar.gz").write_bytes(planted)

    entries, given = world.start(PEAGLE_WARM_SHA256=manifest.sha256)

    assert len(warnings(entries)) == 1
    assert is_cold(given)


@pytest.mark.thorough
def test_what_another_archive_left_in_the_cache_is_not_used(world: World) -> None:
    """The cache may outlive the container; its content is that of the pinned archive."""
    manifest = world.collected()
    world.start()
    planted = archive_of([member("triton/k/k.so", b"planted code")])
    with_archive(world.artifacts, manifest, planted, files=1, unpacked_bytes=12)

    _, given = world.start(PEAGLE_WARM_SHA256=manifest.sha256)

    assert is_cold(given)


@pytest.mark.parametrize("text", ["yes", "any,any", "0" * 63, f"{'0' * 64},", "A" * 64])
def test_an_invalid_pin_is_refused(text: str) -> None:
    with pytest.raises(InvalidEnvironment, match="PEAGLE_WARM_SHA256 is"):
        settings_of({"PEAGLE_WARM_SHA256": text})


def test_pins_are_read() -> None:
    assert pins_in({}) == frozenset()
    assert pins_in({"PEAGLE_WARM_SHA256": "any"}) == {"any"}
    assert pins_in({"PEAGLE_WARM_SHA256": f" {'0' * 64}, {'1' * 64}"}) == {"0" * 64, "1" * 64}


def test_without_a_home_the_cache_is_a_private_folder(tmp_path: Path) -> None:
    folder = make_cache_folder({"TMPDIR": str(tmp_path)})

    assert folder == tmp_path / f"peagle-{os.geteuid()}" / "warm"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert str(cache_folder({})) == f"/tmp/peagle-{os.geteuid()}/warm"


@pytest.mark.parametrize("planted", ["writable", "link", "inner", "owner"])
def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, planted: str) -> None:
    place = tmp_path / f"peagle-{os.geteuid()}"
    if planted == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o777)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir(mode=0o700)
        if planted == "inner":
            (place / "warm").mkdir()
            (place / "warm").chmod(0o777)
        elif planted == "writable":
            place.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(place, 65534, 65534)
        else:
            place.chmod(0o770)

    with pytest.raises(PermissionError, match="other users may write there"):
        make_cache_folder({"TMPDIR": str(tmp_path)})


@pytest.mark.thorough
def test_a_cache_that_others_can_write_is_a_cold_start(world: World) -> None:
    world.collected()
    world.cache.mkdir(parents=True)
    world.cache.chmod(0o777)

    entries, given = world.start()

    (reported,) = warnings(entries)
    assert "other users may write there (set PEAGLE_CACHE to a writable folder" in reported
    assert is_cold(given)


def test_a_named_cache_may_be_in_a_shared_folder(tmp_path: Path) -> None:
    """Such as a volume, which is the user's to protect."""
    tmp_path.chmod(0o777)

    folder = make_cache_folder({"PEAGLE_CACHE": str(tmp_path)})

    assert folder.stat().st_mode & 0o777 == 0o700
