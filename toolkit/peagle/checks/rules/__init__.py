"""One rule per file. A file here is a rule; there is no list to add it to.

A rule's file has

- a docstring: what the rule guards against, and what happens without it;
- ``RULE``: the code of its findings, which is the file's name with hyphens; what it is about; and
  whether vLLM itself rejects such a case;
- ``check(case)``: yields findings, and nothing where it does not know enough, or where another
  rule has already rejected for the same cause. ``@for_head`` adds the head's files as an argument.

A new rule also needs a fixture, one ``Broken`` in ``tests/unit/checks/corpus*.py``, and no more.
"""
