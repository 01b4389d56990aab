"""``peagle render``: files appear whole, nothing is overwritten unasked, nothing is left out."""

from pathlib import Path

from tests.support import in_process


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "README.md").write_text("mine too")
    done = in_process("render", "terraform", "tiny", "-o", str(tmp_path))
    assert (done.code, "--force" in done.error) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "mine.txt"]
    assert (tmp_path / "README.md").read_text() == "mine too"


def test_force_replaces_only_what_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "README.md").write_text("old")
    words = ("render", "terraform", "tiny", "-o", str(tmp_path), "--force")
    assert in_process(*words).code == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "README.md").read_text() != "old"
    assert (tmp_path / "main.tf").is_file()


def test_what_a_format_cannot_say_is_refused(tmp_path: Path) -> None:
    two = ["qwen3-8b", "--model-source", "s3://models/qwen3-8b", "--drafter", "s3://heads/qwen3-8b"]
    done = in_process("render", "cloudformation", *two, "-o", str(tmp_path / "cfn"), "--json")
    assert (done.code, done.refusal["code"]) == (3, "format-unsupported")
    assert list(tmp_path.iterdir()) == []
    assert in_process("render", "terraform", *two, "-o", str(tmp_path / "tf")).code == 0
