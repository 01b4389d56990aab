"""Links between the documents lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("*/README.md")),
]
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
LONGEST = 350


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def dead_links(document: Path) -> list[str]:
    """The relative links to a file or a heading that does not exist."""
    dead = []
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        place, _, anchor = link.partition("#")
        file = (document.parent / place).resolve() if place else document
        if "://" in link or link.startswith("mailto:"):
            continue
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert dead_links(document) == []


def test_a_chapter_that_people_write_is_short_enough_to_read() -> None:
    long = {
        file.name: len(text.splitlines())
        for file in (ROOT / "docs").glob("*.md")
        if "Written by `make docs`" not in (text := file.read_text(encoding="utf-8"))
    }
    assert {name: lines for name, lines in long.items() if lines > LONGEST} == {}


def test_the_readme_is_a_tour_that_leads_to_every_chapter() -> None:
    tour = (ROOT / "README.md").read_text(encoding="utf-8")
    chapters = [f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))]
    assert len(tour.splitlines()) <= 130
    assert [chapter for chapter in chapters if f"]({chapter})" not in tour] == []
