"""The throughput of ``peagle weights sync``, compared with ``aws s3 cp --recursive``.

Goal: at least 0.8 of its throughput. Both upload the same folder to the sandbox's S3, in
alternation, each time to an empty prefix; the wall time of whole commands counts. Without ``aws``
on the path, it is installed from PyPI into a temporary environment.

The folder's files are sparse, so that the disk is not measured. Exits with 1 if the goal is missed.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

BUCKET = "weights-benchmark"
SHARDS = 4
SHARD_BYTES = 256 * 1024 * 1024
ROUNDS = 3
GOAL = 0.8


def main() -> bool:
    """Measure, print the ratio, clean up; whether the goal is met."""
    with tempfile.TemporaryDirectory() as folder:
        home, model = Path(folder, "home"), Path(folder, "model")
        _make_model(model)
        aws = shutil.which("aws") or _install_aws(Path(folder, "aws"))
        peagle = [sys.executable, "-m", "peagle.cli"]
        environment = {**os.environ, "PEAGLE_HOME": str(home), "AWS_CONFIG_FILE": os.devnull}
        environment.pop("AWS_PROFILE", None)
        try:
            _run([*peagle, "sandbox", "start"], environment)
            environment |= _address([*peagle, "sandbox", "env", "--json"], environment)
            ratio = _compare(aws, peagle, model, environment)
        finally:
            _run([*peagle, "sandbox", "stop"], environment)
    return ratio >= GOAL


def _compare(aws: str, peagle: Sequence[str], model: Path, environment: Mapping[str, str]) -> float:
    """The ratio of the two throughputs: the median of all rounds."""
    _run([aws, "s3", "mb", f"s3://{BUCKET}"], environment)
    taken: dict[str, list[float]] = {"aws s3 cp --recursive": [], "peagle weights sync": []}
    for _ in range(ROUNDS):
        for name, seconds in taken.items():
            if name.startswith("aws"):
                command = [aws, "s3", "cp", "--recursive", "--quiet", str(model)]
                command += [f"s3://{BUCKET}/copy/"]
            else:
                command = [*peagle, "weights", "sync", "tiny", f"s3://{BUCKET}/copy"]
                command += ["--target-only", "--target-from", str(model), "--sandbox", "--yes"]
            begin = time.perf_counter()
            _run(command, environment)
            seconds.append(time.perf_counter() - begin)
            _run([aws, "s3", "rm", "--recursive", "--quiet", f"s3://{BUCKET}/copy/"], environment)
    return _show(taken)


def _show(taken: Mapping[str, Sequence[float]]) -> float:
    size = SHARDS * SHARD_BYTES
    for name, seconds in taken.items():
        speed = size / statistics.median(seconds) / 1e6
        print(f"{name:22} {speed:7.0f} MB/s (median of {ROUNDS}, {size / 1e9:.1f} GB)")
    theirs, ours = taken.values()
    rounds = [their / our for their, our in zip(theirs, ours, strict=True)]
    ratio = statistics.median(rounds)
    print(f"{'ratio':22} {ratio:7.2f} ({min(rounds):.2f} to {max(rounds):.2f})   goal {GOAL:g}")
    return ratio


def _make_model(folder: Path) -> None:
    """Complete safetensors files whose tensors are zeros."""
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 4, "vocab_size": 8}')
    where = {f"w{number}": f"model-{number}.safetensors" for number in range(SHARDS)}
    index = {"weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for tensor, file in where.items():
        entry = {"dtype": "U8", "shape": [SHARD_BYTES], "data_offsets": [0, SHARD_BYTES]}
        header = json.dumps({tensor: entry}).encode()
        with (folder / file).open("wb") as stream:
            stream.write(struct.pack("<Q", len(header)) + header)
            stream.truncate(8 + len(header) + SHARD_BYTES)


def _install_aws(folder: Path) -> str:
    print("installing awscli into a temporary environment", flush=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
    subprocess.run([*pip, "install", "awscli"], check=True)
    return str(folder / "bin" / "aws")


def _address(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    done = subprocess.run(command, env=dict(environment), check=True, capture_output=True)
    variables: dict[str, str] = json.loads(done.stdout)
    return variables


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    subprocess.run(
        command, env=dict(environment), check=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
