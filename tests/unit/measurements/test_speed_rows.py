"""The rows that the performance model is fitted to and judged by."""

from __future__ import annotations

from pathlib import Path

from measurements.speed_rows import EVIDENCE, rows
from peagle.bench.evidence import save_evidence
from tests.unit.bench.made import RESULT


def test_results_that_users_save_are_not_among_them(tmp_path: Path) -> None:
    tmp_path = save_evidence(RESULT, tmp_path).parent
    assert rows(tmp_path) == []
    ours = EVIDENCE / "speed-gpt-oss-20b-h200.json"
    (tmp_path / "speed-ours.json").write_bytes(ours.read_bytes())
    assert {row.file for row in rows(tmp_path)} == {"speed-ours.json"}
