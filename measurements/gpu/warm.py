"""Measure how much faster an engine starts with another engine's compiled code.

Each start is one of peagle_serve with the real geometry of a pair and random weights. Example,
from the root of the repository; on the first machine, with one GPU, vLLM and the toolkit:

    python -m measurements.gpu.warm first

    cold       PEAGLE_WARM=collect; the artifact is saved in FOLDER/artifacts
    kept       the same caches again
    restored   all caches removed; PEAGLE_WARM=auto with the artifact next to the weights

On another machine with the same kind and number of GPUs, with FOLDER/artifacts of the first:

    python -m measurements.gpu.warm second --artifacts FOLDER/artifacts

    restored   the first start of this pair on this machine, from the artifact
    cold       PEAGLE_WARM=off without caches, to compare with

Then, with the results of both:
python -m measurements.gpu.warm collect FIRST SECOND --evidence FILE.
Without a GPU, --cpu rehearses everything with the tiny pair. Results go to FOLDER/warm-STEP.json
and logs to FOLDER/logs after each start.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measurements.gpu import evidence, warm_evidence
from measurements.gpu.container import PAIRS, TINY_PAIR, PairFolder
from measurements.gpu.warm_starts import KINDS, Machine, Start, Starts

ROOT = Path("/tmp/peagle/warm")  # nosec B108 # a rented host with one user


class NoArtifact(Exception):
    """There is no artifact of a pair; the message says where it was looked for."""


def first(starts: Starts, folder: PairFolder, gpu: str | None, artifacts: Path) -> None:
    """Start cold, kept and restored, on the machine that makes the artifact."""
    folder.prepare()
    caches: dict[str, str] = {}
    cold = starts.run(Start(folder, "cold", "collect", gpu), keep=caches)
    if cold.get("artifact"):
        shutil.copytree(folder.artifacts, artifacts / folder.pair, dirs_exist_ok=True)
        starts.run(Start(folder, "kept", "off", gpu, more=caches))
        folder.clear()
        starts.run(Start(folder, "restored", "auto", gpu))
    folder.clear()


def second(starts: Starts, folder: PairFolder, gpu: str | None, artifacts: Path) -> None:
    """Start restored and cold, on a machine that never ran this pair. Raises NoArtifact."""
    folder.prepare()
    source = artifacts / folder.pair
    if not list(source.glob("*.json")):
        raise NoArtifact(f"no artifact of {folder.pair} in {source}")
    shutil.copytree(source, folder.artifacts)
    starts.run(Start(folder, "restored", "auto", gpu))
    folder.clear()
    starts.run(Start(folder, "cold", "off", gpu))
    folder.clear()


Step = Callable[[Starts, PairFolder, "str | None", Path], None]
STEPS: dict[str, Step] = {"first": first, "second": second}


def run(step: str, options: argparse.Namespace) -> bool:
    """Measure all pairs, one GPU each at the same time; whether every start became ready."""
    options.out.mkdir(parents=True, exist_ok=True)
    python = options.python or sys.executable
    machine = Machine.here(python, None if options.cpu else "gpu")
    end = time.monotonic() + options.seconds
    starts = Starts(step, options.out, machine, python, end, options.kinds.split(","))
    artifacts = options.artifacts or options.out / "artifacts"
    gpus: list[str | None] = [None] if options.cpu else list(options.gpus.split(","))
    pairs = [TINY_PAIR] if options.cpu else options.pairs.split(",")

    def stream(gpu: str | None, number: int) -> None:
        starts.pin(number, len(gpus))
        for pair in pairs[number :: len(gpus)]:
            try:
                STEPS[step](starts, PairFolder(options.root, pair), gpu, artifacts)
            except Exception as error:
                starts.failed(pair, error)

    threads = [threading.Thread(target=stream, args=(gpu, n)) for n, gpu in enumerate(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return starts.all_ready


def collect(folders: Sequence[Path], path: Path, rehearsal: bool) -> None:
    """Write the evidence file of these results and print its summary."""
    document = warm_evidence.warm_document(folders, rehearsal)
    evidence.write(path, document)
    for row in document["summary"]:
        print(f"{row['pair']}, {row['machine']} machine, {row['kind']}: {row['times_faster']}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m measurements.gpu.warm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("step", choices=(*STEPS, "collect"))
    add("folders", type=Path, nargs="*", help="collect: folders with results")
    add("--out", type=Path, default=Path(".gpu/warm"), help="results (default: .gpu/warm)")
    add("--artifacts", type=Path, help="first saves here, second reads (default: OUT/artifacts)")
    add("--root", type=Path, default=ROOT,
        help=f"the pairs' folders; the same on both machines (default: {ROOT})")  # fmt: skip
    add("--gpus", default="0", help="devices, such as 0,1 (default: 0)")
    add("--pairs", default=",".join(PAIRS), help=f"default: {','.join(PAIRS)}")
    add("--kinds", default=",".join(KINDS), help=f"starts to make (default: {','.join(KINDS)})")
    add("--seconds", type=float, default=340, help="end of the measurement (default: 340)")
    add("--cpu", action="store_true", help="rehearse on the CPU with the tiny pair")
    add("--python", help="Python of the engine's environment (default: this one)")
    add("--evidence", type=Path, default=warm_evidence.WARM_EVIDENCE, help="the evidence file")
    options = parser.parse_intermixed_args(arguments)
    if options.step == "collect":
        collect(options.folders, options.evidence, options.cpu)
        return 0
    return 0 if run(options.step, options) else 1


if __name__ == "__main__":
    sys.exit(main())
