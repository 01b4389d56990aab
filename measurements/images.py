"""The size of an image's layer, and the time to build one.

Goal: at most 5 MB on top of the runtime, without weights. A real build needs a Docker engine and
the image from `.ci/docker-engine base`; without them it is reported as not measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peagle.catalog import load_catalog
from peagle.errors import PeagleError
from peagle.images.build import context, write_tar
from peagle.images.docker import Docker
from peagle.planning import Options, make_plan
from peagle.render.image import LAYER_LIMIT_BYTES, Recipe

PEAGLE = str(Path(sys.executable).with_name("peagle"))
BASE = os.environ.get("PEAGLE_TEST_BASE", "peagle-test-base:local")


def main() -> bool:
    """Measure and print one line per number; whether the layer is small enough."""
    catalog = load_catalog()
    plan = make_plan(Options(pair="gpt-oss-20b"), catalog)
    begin = time.perf_counter()
    files = context(plan, Recipe("gpu", plan.runtime.image, catalog.targets[plan.target.id]))
    with tempfile.TemporaryFile() as stream:
        write_tar(files, stream)
        archive = stream.tell()
    seconds = time.perf_counter() - begin
    size = sum(file.size for file in files)
    goal = LAYER_LIMIT_BYTES
    print(f"image layer, files       {size} bytes   goal {goal}   {size / goal:.3f}")
    print(f"build context            {archive} bytes in {seconds:.3f} s")
    try:
        Docker().check()
        if Docker().inspect("image", BASE) is None:
            raise PeagleError(f"there is no image {BASE}", ".ci/docker-engine base")
    except PeagleError as error:
        print(f"image build              not measured: {error}")
        return size <= goal
    layers = [_build(name) for name in ("image build, first", "image build, again")]
    return max(size, *layers) <= goal


def _build(name: str) -> int:
    """Build an image; the size of the layer in bytes."""
    command = [PEAGLE, "image", "build", "tiny", "--runtime", "cpu", "--base", BASE, "--json"]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    built = json.loads(done.stdout)
    print(
        f"{name:<24} {seconds:.1f} s   image {built['size_bytes'] / 1e6:.0f} MB   "
        f"layer {built['layer_bytes']} bytes"
    )
    return int(built["layer_bytes"])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
