"""The share of sampled mutants that the unit tests kill.

    python -m tools.mutants after                (an hour on 2 busy cores; needs Linux, root, git)

The sample is drawn with a seed from the current commit, in a scratch clone: each package has a part
in proportion to its lines, a file is drawn by its lines, then a place in it and an operator of
cosmic-ray. Annotations and decorators are not mutated. One run of tests/unit records which test
enters which line. A mutant meets the tests that enter its line and, up to ``TESTS``, those that
enter its file, first those that enter little else. Tests that fail without a mutant kill none.
tools/mutants.json has the samples.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import venv
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tools" / "mutants.json"
PACKAGES = ("planning", "checks", "fit", "deploy", "peagle_serve")
TESTS, CASES = 40, 3
"""How many tests a mutant meets, and how many cases of one test function come first."""
LONGEST_LINE = 2_000
"""Longer lines of a log are values of failed tests; a pattern would take minutes with them."""
SLOW_SECONDS, TIMEOUT_SECONDS = 3.0, 400
SAME = re.compile(r"_(Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq)$")
"""Operators that hardly ever change what a program does."""
# A mutant may send signals to any process ID: it sees only its own processes, and none is left.
ALONE = ("nice", "-n", "15", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
PYTEST = ("-m", "pytest", "-p", "mutants_coverage", "-p", "no:cacheprovider", "-q")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
SECONDS = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +(.+?) *$", re.MULTILINE)
Mutant = dict[str, Any]


def python_of(work: Path) -> str:
    """The Python of the scratch tree."""
    return str(work / "tree" / ".venv" / "bin" / "python")


def site_packages(environment: Path) -> Path:
    """Where a virtual environment has its packages."""
    return next(environment.glob("lib/*/site-packages"))


def folder(tree: Path, package: str) -> Path:
    """Where a package is: in the toolkit, or in the container."""
    inside = tree / "toolkit" / "peagle" / package
    return inside if inside.exists() else tree / "containers" / package


def prepare(work: Path) -> None:
    """Clone the current commit, with an environment that has cosmic-ray and coverage beside what
    the environment of this process has."""
    tree, coverage = work / "tree", work / "coverage"
    subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
    venv.create(tree / ".venv")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    freeze = [*pip, "freeze", "--exclude-editable"]
    installed = subprocess.run(freeze, check=True, capture_output=True).stdout
    (work / "constraints").write_bytes(installed)
    needs = ("cosmic-ray", "coverage>=7.10", "pytest", "pytest-timeout")
    pip += ["--python", python_of(work), "install", "-q", "-c", str(work / "constraints")]
    subprocess.run([*pip, *needs], check=True)
    packages = site_packages(tree / ".venv")
    (packages / "a1_coverage.pth").unlink(missing_ok=True)  # it would measure a process twice
    shutil.copy(ROOT / "tools" / "mutants_coverage.py", packages)
    paths = (tree / "toolkit", tree / "containers", site_packages(Path(sys.prefix)))
    (packages / "tree.pth").write_text("\n".join(map(str, (*paths, "import mutants_coverage"))))
    coverage.mkdir()
    source = "".join(f"    {folder(tree, package)}\n" for package in PACKAGES)
    (coverage / "settings").write_text(
        f"[run]\nparallel = true\ncontext = ${{CURRENT_TEST-}}\npatch = _exit, execv\n"
        f"data_file = {coverage}/data\nsource =\n{source}"
        "disable_warnings = no-data-collected, module-not-measured, module-not-imported\n"
    )


def measure(work: Path) -> None:
    """Run the unit tests once: ``coverage/data`` then has the lines that each test enters, and
    ``coverage/log`` its seconds."""
    coverage = work / "coverage"
    settings = f"--rcfile={coverage}/settings"
    command = [*ALONE, python_of(work), "-m", "coverage", "run", settings, *PYTEST, "-vv"]
    command += ["-m", "not exhaustive", "--durations=0", "tests/unit"]
    with (coverage / "log").open("wb") as log:
        subprocess.run(command, cwd=work / "tree", stdout=log, stderr=log, check=False)
    (coverage / "current").unlink()
    combine = [python_of(work), "-m", "coverage", "combine", "-q", settings]
    subprocess.run(combine, cwd=coverage, check=True)


def draw(tree: Path, seed: int, number: int) -> list[Mutant]:
    """The sample. What does not compile, or means the same, is drawn again."""
    chance = random.Random(seed)
    lines = {
        package: {path: len(path.read_text("utf-8").splitlines())
                  for path in sorted(folder(tree, package).rglob("*.py"))}
        for package in PACKAGES
    }  # fmt: skip
    total = sum(sum(files.values()) for files in lines.values())
    shares = {package: number * sum(files.values()) / total for package, files in lines.items()}
    sizes = {package: int(share) for package, share in shares.items()}
    for package in sorted(shares, key=lambda package: sizes[package] - shares[package]):
        sizes[package] += sum(sizes.values()) < number
    sample: dict[tuple[Path, tuple[int, int]], Mutant] = {}
    places: dict[Path, dict[tuple[int, int], list[tuple[str, int]]]] = {}
    for package, files in lines.items():
        until = len(sample) + sizes[package]
        while len(sample) < until:
            [path] = chance.choices(list(files), list(files.values()))
            text = path.read_text("utf-8")
            if path not in places:
                places[path] = read_places(text)
            if not places[path]:
                continue
            place = chance.choice(list(places[path]))
            operator, occurrence = chance.choice(places[path][place])
            code = mutate(text, operator, occurrence)
            if code is None or (path, place) in sample:
                continue
            changed = [
                (old.strip(), new.strip())
                for old, new in zip(text.splitlines(), code.splitlines(), strict=False)
                if old != new
            ]
            before, after = map("\n".join, zip(*changed, strict=True))
            name = path.relative_to(tree).as_posix()
            sample[path, place] = {"package": package, "file": name, "line": place[0],
                                   "operator": operator, "occurrence": occurrence,
                                   "before": before, "after": after}  # fmt: skip
    # What an interrupted run has met is a random sample too.
    return chance.sample(list(sample.values()), number)


def read_places(text: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Line and column -> the operators of cosmic-ray that change what is there, and which of the
    operator's occurrences in the file it is."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = [(node, is_declaration(node)) for node in ast_nodes(get_ast(text))]
    places = defaultdict(list)
    for name in sorted(operator_names()):
        if get_operator(name).arguments() or SAME.search(name):
            continue
        operator, occurrence = get_operator(name)(), 0
        for node, declares in nodes:
            for start, _ in operator.mutation_positions(node):
                if not declares:
                    places[start].append((name, occurrence))
                occurrence += 1
    return dict(sorted(places.items()))


def is_declaration(node: Any) -> bool:
    """Whether a node of parso is in an annotation or a decorator."""
    while (parent := node.parent) is not None:
        if node.type in ("decorator", "decorators", "tfpdef"):
            return True
        if parent.type == "annassign" and parent.children[1] is node:
            return True
        if parent.type == "funcdef" and parent.annotation is node:
            return True
        node = parent
    return False


def mutate(text: str, operator: str, occurrence: int) -> str | None:
    """The changed text; none if it does not compile or means the same."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code: str = mutate_code(text, get_operator(operator)(), occurrence)
    try:
        return code if ast.dump(ast.parse(code)) != ast.dump(ast.parse(text)) else None
    except SyntaxError:
        return None


def choose_tests(work: Path, sample: list[Mutant]) -> None:
    """Set the tests that each mutant meets; none where no test enters its line."""
    log_lines = (work / "coverage" / "log").read_text("utf-8").splitlines()
    log = "\n".join(line for line in log_lines if len(line) < LONGEST_LINE)
    failed = set(FAILED.findall(log))
    seconds: dict[str, float] = defaultdict(float)
    for length, test in SECONDS.findall(log):
        seconds[test] += float(length)
    entered: dict[str, dict[str, int]] = defaultdict(dict)
    total: Counter[str] = Counter()
    rows = "select path, context, numbits from line_bits join file on file.id = file_id "
    rows += "join context on context.id = context_id"
    with sqlite3.connect(work / "coverage" / "data") as data:
        for path, test, numbits in data.execute(rows):
            bits = int.from_bytes(numbits, "little")  # bit n is line n
            total[test] += bits.bit_count()
            if test not in failed:
                entered[path][test] = entered[path].get(test, 0) | bits
    for mutant in sample:
        lines, line = entered[str(work / "tree" / mutant["file"])], mutant["line"]
        functions: Counter[str] = Counter()
        order: list[tuple[bool, bool, int, int, str]] = []
        for test in sorted(lines, key=lambda test: (-lines[test].bit_count() / total[test], test)):
            function = test.split("[")[0]
            elsewhere = not lines[test] >> line & 1
            cases = functions[function] // CASES
            order.append((elsewhere, seconds[test] > SLOW_SECONDS, cases, len(order), test))
            functions[function] += not elsewhere
        is_entered = any(bits >> line & 1 for bits in lines.values())
        mutant["tests"] = [test for *_, test in sorted(order) if test][: TESTS * is_entered]


def run(work: Path, tests: list[str], *options: str) -> tuple[str, list[str]]:
    """Whether tests fail (killed), none does (survived) or time runs out, and which fail: none of
    them if pytest cannot even collect them."""
    (work / "coverage" / "chosen").write_text(json.dumps(tests), "utf-8")
    files = dict.fromkeys(test.split("::")[0] for test in tests)
    command = [*ALONE, python_of(work), *PYTEST, "--timeout=100", *options, *files]
    try:
        done = subprocess.run(command, cwd=work / "tree", capture_output=True, text=True,
                              errors="replace", timeout=TIMEOUT_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return "timeout", []
    outcome = "survived" if done.returncode in (0, 5) else "killed"
    return outcome, FAILED.findall(done.stdout)


def meet(work: Path, mutant: Mutant) -> None:
    """Run a mutant against its tests."""
    path = work / "tree" / mutant["file"]
    text = path.read_text("utf-8")
    code = mutate(text, mutant["operator"], mutant["occurrence"])
    assert code is not None
    path.write_text(code, "utf-8")
    try:
        mutant["outcome"], failed = run(work, mutant["tests"], "-x")
    finally:
        path.write_text(text, "utf-8")
    mutant["killed_by"] = failed[0] if failed else None


def summarize(sample: list[Mutant]) -> dict[str, float]:
    """The share that is killed, with its 95 % interval (Wilson)."""
    counts = Counter(mutant["outcome"] for mutant in sample if "outcome" in mutant)
    z, n = 1.96, counts.total()
    share = (counts["killed"] + counts["timeout"]) / n
    middle = (share + z * z / 2 / n) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / 4 / n / n) / (1 + z * z / n)
    return {**counts, "share": share, "low": round(middle - half, 3),
            "high": round(middle + half, 3)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="The share of sampled mutants that tests kill.")
    parser.add_argument("name", help="of the sample, in tools/mutants.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--work", type=Path, help="where an interrupted run goes on")
    arguments = parser.parse_args()
    work: Path = arguments.work or Path(tempfile.mkdtemp(prefix="mutants-"))
    print(f"an interrupted run goes on with --work {work}", flush=True)
    if not (work / "tree").exists():
        prepare(work)
    if not (work / "coverage" / "data").exists():
        measure(work)
    sys.path.append(str(site_packages(work / "tree" / ".venv")))
    state = work / "sample.json"
    if not state.exists():
        sample = draw(work / "tree", arguments.seed, arguments.number)
        choose_tests(work, sample)
        state.write_text(json.dumps(sample), "utf-8")
    sample = json.loads(state.read_text("utf-8"))
    while waiting := [mutant for mutant in sample if "outcome" not in mutant]:
        for mutant in waiting:
            if mutant["tests"]:
                meet(work, mutant)
            else:
                mutant["outcome"] = "not entered"
            state.write_text(json.dumps(sample), "utf-8")
            write(arguments, sample)
            print(mutant["outcome"], mutant["file"], mutant["line"], mutant["after"], flush=True)
        killers = {mutant["killed_by"] for mutant in sample if mutant.get("killed_by")}
        failed = run(work, sorted(killers))[1]
        for mutant in sample:
            if mutant.get("killed_by") in failed:
                mutant["tests"] = [test for test in mutant["tests"] if test not in failed]
                del mutant["outcome"]


def write(arguments: argparse.Namespace, sample: list[Mutant]) -> None:
    """Keep the sample under its name, with the number of tests in the place of their names."""
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    mutants = [{**mutant, "tests": len(mutant["tests"])} for mutant in sample]
    results[arguments.name] = {"seed": arguments.seed, **summarize(sample), "mutants": mutants}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
