"""What runs in the container needs nothing that is not in Python itself."""

from __future__ import annotations

import ast
import sys

from peagle.data import entrypoint_folder


def test_serve_imports_the_standard_library_only() -> None:
    imported: set[str] = set()
    for file in (entrypoint_folder()).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")

    packages = {name.partition(".")[0] for name in imported}
    assert packages - set(sys.stdlib_module_names) == {"peagle_serve"}
