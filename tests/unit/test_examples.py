"""examples/tiny: a head is not trained on the modules that measure it."""

from pathlib import Path

from examples.tiny import corpus, questions

MODULE = '''
def {0}(a, b=2):
    """Return the sum of what {0} gets.

    Both are numbers.
    """
    total = a + b
    return total


def {0}_twice(a):
    """Return the double of what {0} gets."""
    total = a * 2
    return total
'''


def test_questions_are_about_modules_that_are_not_held_out(tmp_path: Path) -> None:
    paths = {"alpha": "alpha.py", "heap": "heapq.py", "heap_test": "test/test_heapq.py"}
    for name, path in paths.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(MODULE.format(name))
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text("topics = {}")
    text = corpus.build(tmp_path)
    rows = list(questions.select(text.train_chats, 100, seed=1))
    assert {chat.source for chat in text.held_out_chats} == {"heapq.py", "test/test_heapq.py"}
    assert {row["domain"] for row in rows} == {"explain", "write", "arguments", "describe",
                                               "document"}  # fmt: skip
    asked = [message["content"] for row in rows for message in row["messages"]]
    assert len(asked) == len(set(asked)) > len(text.train_chats)  # with recombined ones
    assert not any("heap" in question for question in asked)
    assert rows[:3] == list(questions.select(text.train_chats, 3, seed=1))
