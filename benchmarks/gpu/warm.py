"""How much sooner an engine starts with what another one compiled, here and on a fresh machine.

Each start is one of ``containers/serve`` with the real geometry of a pair and weights drawn at
random. On the first machine:

    python -m benchmarks.gpu.warm first --out FOLDER [--gpus 0,1] [--seconds 340]

    cold       PEAGLE_WARM=collect; then the artefact is fetched, and packed for the way
    kept       the same caches again, where they are
    restored   all caches removed; PEAGLE_WARM=auto with the artefact beside the weights

On another machine, after ``take`` for each piece of what came back:

    python -m benchmarks.gpu.warm take PIECE
    python -m benchmarks.gpu.warm second --out FOLDER [--gpus 0,1] [--seconds 280]

    restored   the first start ever of this pair on this machine, from the artefact
    cold       PEAGLE_WARM=off, nothing kept: what the start above is compared with

``hand`` copies pieces to the folder that did not fit there before (at most 8 files and 64 MiB come
back from one command). ``collect FOLDER...`` makes the evidence file of both runs' results. With
``--cpu`` it is the tiny pair and the engine of this machine, so that all can be tried without a
GPU. Every start is a line on the terminal and in the results as soon as it is over.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gpu import warm_artefacts, warm_evidence
from benchmarks.gpu.warm_places import PAIRS, TINY_PAIR, Place
from benchmarks.gpu.warm_starts import KINDS, Machine, Start, Starts

ROOT = Path("/tmp/peagle/warm")


def first(starts: Starts, place: Place, gpu: str | None, out: Path) -> None:
    """Cold, kept, restored: on the machine that collects."""
    place.prepare()
    caches: dict[str, str] = {}
    cold = starts.run(Start(place, "cold", "collect", gpu), keep=caches)
    if cold.get("artefact"):
        with starts.telling(place.pair, "packed for the way"):
            made = warm_artefacts.pack(place, starts.root / "parcels")
            handed = warm_artefacts.hand(starts.root / "parcels", out)
        starts.note(cold, pieces=len(made), handed=[path.name for path in handed])
        starts.run(Start(place, "kept", "off", gpu, more=caches))
        place.forget()
        starts.run(Start(place, "restored", "auto", gpu))
    place.forget()


def second(starts: Starts, place: Place, gpu: str | None, out: Path) -> None:
    """Restored and cold: on a machine that never ran this pair."""
    place.prepare()
    with starts.telling(place.pair, "artefact put together"):
        warm_artefacts.unpack(place, starts.root / "kept")
    starts.run(Start(place, "restored", "auto", gpu))
    place.forget()
    starts.run(Start(place, "cold", "off", gpu))
    place.forget()


Steps = Callable[[Starts, Place, "str | None", Path], None]


def run(step: str, do: Steps, given: argparse.Namespace) -> bool:
    """All pairs, each GPU at the same time; True if every start became ready."""
    given.out.mkdir(parents=True, exist_ok=True)
    python = given.python or sys.executable
    machine = Machine.here(python, None if given.cpu else "gpu")
    results = given.out / f"warm-{step}.json"
    end = time.monotonic() + given.seconds
    starts = Starts(step, results, machine, python, given.root, end, given.kinds.split(","))
    gpus: list[str | None] = [None] if given.cpu else list(given.gpus.split(","))
    pairs = [TINY_PAIR] if given.cpu else given.pairs.split(",")

    def stream(gpu: str | None, number: int) -> None:
        starts.pin(number, len(gpus))
        for pair in pairs[number :: len(gpus)]:
            try:
                do(starts, Place(given.root, pair), gpu, given.out)
            except Exception as error:
                starts.failed(pair, error)

    threads = [threading.Thread(target=stream, args=(gpu, n)) for n, gpu in enumerate(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shutil.copy(results, given.root / results.name)
    return starts.good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("first", "second", "take", "hand", "collect"))
    parser.add_argument("given", type=Path, nargs="*", help="take: pieces; collect: folders")
    parser.add_argument("--out", type=Path, default=Path("gpu-warm"))
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--kinds", default=",".join(KINDS), help="of starts; others are left out")
    parser.add_argument("--seconds", type=float, default=340)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--python", help="of the engine; this one, where it is not named")
    parser.add_argument("--evidence", type=Path, default=warm_evidence.EVIDENCE)
    given = parser.parse_intermixed_args(arguments)
    if given.step == "take":
        for piece in given.given:
            warm_artefacts.take(piece, given.root / "kept")
    elif given.step == "hand":
        given.out.mkdir(parents=True, exist_ok=True)
        warm_artefacts.hand(given.root / "parcels", given.out)
    elif given.step == "collect":
        warm_evidence.write(given.evidence, warm_evidence.document(given.given, given.cpu))
    else:
        return 0 if run(given.step, {"first": first, "second": second}[given.step], given) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
