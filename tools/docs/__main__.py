"""Write the generated chapters: ``python -m tools.docs`` (``make docs``)."""

from __future__ import annotations

from tools.docs.pages import PAGES, bundled

if __name__ == "__main__":
    with bundled():
        for path, page in PAGES.items():
            path.write_text(page(), encoding="utf-8")
            print(f"wrote {path.name}")
