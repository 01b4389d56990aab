"""``make audit``: vulnerabilities fail it; a service that does not answer is a message."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"
SKIPPED = "a 1 Dependency not found on PyPI and could not be audited: a (1)"


@pytest.mark.parametrize(
    ("printed", "status", "code", "is_skipped"),
    [
        ("No known vulnerabilities found", 0, 0, False),
        ("Found 1 known vulnerability in 1 package", 1, 1, False),
        ("pip_audit._service.interface.ServiceError: Max retries exceeded", 1, 0, True),
        (f"No known vulnerabilities found\n{SKIPPED}", 0, 0, True),
        ("usage: pip-audit", 2, 1, False),
    ],
)
def test_only_a_service_without_an_answer_is_skipped(
    tmp_path: Path, printed: str, status: int, code: int, is_skipped: bool
) -> None:
    (tmp_path / "printed").write_text(f"{printed}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat "{tmp_path}/printed"\nexit {status}\n')
    python.chmod(0o755)
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1 \\\n    --hash=sha256:00\n")
    done = subprocess.run(
        [AUDIT, python, lock], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code
    assert done.stderr.startswith("skipped: ") is is_skipped
    assert is_skipped or printed in done.stdout
