"""The plan for a lent GPU host: every call in order, with what travels, its command and seconds.

``python -m benchmarks.gpu.lease [--gpus 2] [--json]``. Two machines, one after the other: the first
measures and makes the artefacts of warm starts, the second must be a fresh one of the same kind
(an artefact is for one list of GPUs). Nothing is run here. Every call is one command below the
limits, and one that fails or is cut short leaves its results, so the next ones go on.

Before: ``python -m benchmarks.gpu.carry make``. After each call that gives rows: collect them (see
``COLLECT``), since a row that the evidence has is not measured again by a later call. Between the
machines: put the ``warm-*`` pieces that came back into ``.gpu/warm/``, ask for this plan again (it
then knows the pieces), and hand the first machine back. Speed comes last: there is evidence of it,
if from a busy host. Where ``first`` says that pieces are left:
``python3 -m benchmarks.gpu.warm hand --out "$OUT"`` on the same machine brings them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu.carry import PIECE_MIB, VLLM
from benchmarks.gpu.warm_places import PAIRS

BUDGET_SECONDS = 1800
MOST_COMMAND = 2000
MOST_SECONDS = 600
MOST_MIB = 64
START_SECONDS = 60
"""Seen: 25 s thrice, and once more than a minute."""
CALL_SECONDS = 6
"""Of one call beside its command: what travels to and fro. Seen: 5 s."""
UNPACK_SECONDS = 38
"""16 processors: 87 s with 2."""
PIECES = 6
MOST_CARRIED = 8
WARM = Path(".gpu/warm")
"""Where the artefacts' pieces are put that came back from the first machine."""

COLLECT = (
    "python -m benchmarks.gpu.memory --collect OUT/memory ...",
    "python -m benchmarks.gpu.speed --collect OUT/speed"
    " --evidence model_catalog/evidence/speed-gpt-oss-20b-h200.json",
    "python -m benchmarks.gpu.warm collect OUT-OF-FIRST OUT-OF-SECOND",
)

SECONDS = {
    2: {"memory": 390, "speed": 300, "first": 420, "second": 120},
    1: {"memory": 250, "speed": 240, "first": 400, "second": 190},
}
"""By the number of GPUs. On one, ``first`` is a command for each pair: a cold start takes up to
300 s there and a warm one 80 s. No row of memory may need more than its command: the first one of
a machine takes up to 260 s, those after it about 70 s."""

KINDS = {"first": "cold,kept", "second": "restored"}
"""Of the starts. Restored on the machine that collected, and cold on the fresh one, tell nothing
that these do not; there is no time for them."""


@dataclass(frozen=True)
class Call:
    """``seconds``: what it takes of the lease; ``timeout``: what the call is given."""

    machine: int
    name: str
    carry: tuple[str, ...]
    command: str
    seconds: int
    timeout: int
    gives: str


def calls(gpus: int, warm: Path = WARM) -> Iterator[Call]:
    """All calls in order. ``gpus``: of the machine's kind, 1 or 2; ``warm``: where the artefacts'
    pieces lie, once there are some."""
    seconds, names = SECONDS[gpus], ",".join(map(str, range(gpus)))

    def step(machine: int, name: str) -> Call:
        return _measured(machine, name, f"benchmarks.gpu.steps {name}", names, seconds[name],
                         f"{name}/rows.jsonl, {name}/logs.tar.xz")  # fmt: skip

    yield from _engine(1)
    yield step(1, "memory")
    for pairs in [",".join(PAIRS)] if gpus > 1 else PAIRS:
        command = f"benchmarks.gpu.warm first --kinds {KINDS['first']} --pairs {pairs}"
        yield _measured(1, "first", command, names, seconds["first"],
                        "warm-first.json, warm-PAIR.N")  # fmt: skip
    yield from _engine(2)
    yield from warm_calls(warm)
    command = f"benchmarks.gpu.warm second --kinds {KINDS['second']}"
    yield _measured(2, "second", command, names, seconds["second"], "warm-second.json")
    yield step(2, "speed")


def warm_calls(folder: Path) -> Iterator[Call]:
    """The artefacts' pieces, as many in a call as may travel; one call while none is there yet."""
    files = sorted(folder.glob("warm-*"), key=lambda path: (path.stem, int(path.suffix[1:])))
    loads: list[list[Path]] = []
    room = 0
    for file in files:
        size = file.stat().st_size
        if size > room or len(loads[-1]) == MOST_CARRIED:
            loads.append([])
            room = int(PIECE_MIB * (1 << 20))
        loads[-1].append(file)
        room -= size
    for carry in [tuple(map(str, load)) for load in loads] or [(str(folder),)]:
        given = " ".join(carry) if loads else f"{folder}/warm-*"
        yield Call(2, "warm pieces", carry, f"python3 -m benchmarks.gpu.warm take {given}",
                   CALL_SECONDS, 60, "all are here")  # fmt: skip


def _engine(machine: int) -> Iterator[Call]:
    """The engine's pieces; with the last one it is unpacked, checked and imported."""
    for number in range(1, PIECES + 1):
        piece = f".gpu/engine/vllm-{VLLM}.{number}"
        last = number == PIECES
        first = START_SECONDS if number == 1 else 0
        yield Call(
            machine,
            f"piece {number}",
            (piece,),
            f"python3 -m benchmarks.gpu.carry take {piece}",
            CALL_SECONDS + first + (UNPACK_SECONDS if last else 0),
            240 if last else 60,
            "29 of 29 modules imported" if last else "",
        )


def _measured(machine: int, name: str, module: str, gpus: str, seconds: int, gives: str) -> Call:
    command = (
        f". /tmp/peagle/environment; python3 -m {module}"
        f' --out "$OUT" --gpus {gpus} --seconds {seconds - 15}'
    )
    return Call(machine, name, (), command, seconds + CALL_SECONDS, seconds + 60, gives)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, choices=sorted(SECONDS), default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    planned = list(calls(given.gpus))
    if given.json:
        print(json.dumps([asdict(call) for call in planned], indent=1))
        return
    spent = 0
    for call in planned:
        spent += call.seconds
        print(f"machine {call.machine}  {call.name:12} {call.seconds:4} s, {spent:5} s in all, "
              f"limit {call.timeout} s")  # fmt: skip
        print(f"    carry {list(call.carry)}\n    {call.command}")
        if call.gives:
            print(f"    gives {call.gives}")
    print(f"{spent} of {BUDGET_SECONDS} s; then, here:")
    print(*(f"    {line}" for line in COLLECT), sep="\n")
    print(*luggage(planned, travelling()), sep="\n")


def travelling() -> float:
    """MiB of the working tree that travel with every call: all files that git does not ignore."""
    command = ["git", "ls-files", "-coz", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = (Path(name) for name in names if name)
    return sum(path.stat().st_size for path in paths if path.is_file()) / (1 << 20)


def luggage(planned: Sequence[Call], tree: float) -> Iterator[str]:
    """What is wrong with what is to travel: too much for one call, or not there."""
    carried = {Path(name) for call in planned for name in call.carry}
    here = [path for path in carried if path.is_file()]
    most = max((path.stat().st_size / (1 << 20) for path in here), default=0.0) + tree
    yield f"at most {most:.1f} of {MOST_MIB} MiB travel in a call, {tree:.1f} are the working tree"
    if most > MOST_MIB:
        yield "too much: make smaller pieces (carry make --piece-mib)"
    missing = sorted(str(path) for path in carried if not path.exists())
    if missing:
        yield f"not there yet: {', '.join(missing)}"


if __name__ == "__main__":
    main()
