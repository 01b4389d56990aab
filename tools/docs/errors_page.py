"""docs/errors.md: every code of a finding and of an error, with its cause and its fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peagle.checks.registry import list_rules
from peagle_serve.crash import CAUSES as CRASHES
from tools.docs.codes import LEVELS, Code, errors_found, findings_found, known_problems
from tools.docs.markdown import NOTE, cell, escaped, table
from tools.docs.templates import Text

_ABOUT = {
    "head": "Draft heads",
    "target": "Targets",
    "load": "The load",
    "version": "Versions and arguments of vLLM",
    "hardware": "GPUs, images and regions",
}
_FOLDERS = {
    "planning": "Plans",
    "fit": "Memory",
    "weights": "Weights in S3",
    "aws": "The account: roles, prices, quotas, images",
    "deploy": "Deployments",
    "proof.py": "Proofs",
    "train": "Training",
}
"""What a finding is about, by its rule, package or module, in the order of the page."""

_EXIT_CODES = {
    "2": "The request (exit code 2)",
    "3": "Refused, or not proved (exit code 3)",
    "4": "AWS, a registry, the Hub or the engine (exit code 4)",
    "130": "Interrupted (exit code 130)",
}

_INTRODUCTION = f"""\
# Errors and findings

{NOTE}

A **finding** is what a check reports: an error prevents any change (exit code 3), a warning should
be read before one, a note is information; some have several, by the case. An **error** ends a
command, or is raised by the [library](library.md). What only the case at hand knows is in
*italics*, and in capitals in commands. AWS's own codes, such as `ThrottlingException`, are kept
where AWS rejects a request, and are in AWS's documentation.

With `--json` a finding or an error has a `code`, which programs compare, a `message` and a `fix`
for people, and, where one exists, a `command`: the arguments of a complete command, with the
`--catalog`, `--profile`, `--sandbox` and `--region` of yours. Where options of your command have to
change, a finding has them as `options`. `peagle explain CODE` prints a row of this page.

If `deploy`, `compare`, `promote`, `drop`, `rollback`, `warm` or `destroy` fails after it began to
change AWS, its document also has `remaining`: the resources that exist, their price per hour, and
the commands that continue, undo or remove, which ask no questions. A command that does not apply is
null.
"""


def errors_page() -> str:
    """The chapter."""
    codes = findings_found()
    about = {rule.code: rule.about for rule in list_rules()}
    parts = [_INTRODUCTION]
    for kind, title in _ABOUT.items():
        parts.append(_findings(title, {c: f for c, f in codes.items() if about.get(c) == kind}))
    for folder, title in _FOLDERS.items():
        rest = {c: f for c, f in codes.items() if c not in about and locate_folder(f) == folder}
        parts.append(_findings(title, rest))
    parts += [_problems(), *_errors(), _crashes()]
    return "\n".join(parts)


def locate_folder(code: Code) -> str:
    """The package or module that makes it."""
    return code.files[0].partition("/")[0]


def _findings(title: str, codes: Mapping[str, Code]) -> str:
    rows = [
        (f"`{code}`", _severity(entry), cell(entry.causes, 2), cell(entry.fixes, 3))
        for code, entry in codes.items()
    ]
    return f"## {title}\n\n{table(('finding', 'severity', 'cause', 'fix'), rows)}\n"


def _severity(code: Code) -> str:
    return ", ".join(level for level in LEVELS if level in code.levels)


def _problems() -> str:
    rows = [
        (
            f"`{code}`",
            problem.level,
            f"{pair}: {escaped(problem.summary)}",
            escaped(problem.fix) or "nothing: plans do what it says",
        )
        for code, (pair, problem) in known_problems().items()
    ]
    heading = ("finding", "severity", "cause", "fix")
    return f"## Known problems of drafters in the catalogue\n\n{table(heading, rows)}\n"


def _errors() -> list[str]:
    codes = errors_found()
    parts = []
    for number, title in _EXIT_CODES.items():
        rows = [
            (f"`{code}`{_also(entry.levels[1:])}", cell(entry.causes, 2), cell(entry.fixes, 3))
            for code, entry in codes.items()
            if entry.levels[0] == number
        ]
        if rows:
            parts.append(f"## {title}\n\n{table(('error', 'cause', 'fix'), rows)}\n")
    return parts


def _also(exit_codes: Sequence[str]) -> str:
    """The further exit codes of a code whose cause has several classes."""
    return f" (also {', '.join(exit_codes)})" if exit_codes else ""


def _crashes() -> str:
    """The causes that the container and ``deploy`` recognize in the log of an engine."""
    rows = [
        (f"`{crash.cause}`", cell([Text(crash.fix, crash.command)], 1) or "as the line says")
        for _, crash in CRASHES
    ]
    introduction = (
        "The container and `deploy` recognize these causes in the engine's log, and quote the line:"
    )
    return f"## Why an engine ended\n\n{introduction}\n\n{table(('cause', 'fix'), rows)}\n"
