"""One rule per file. A file here is a rule; there is no list to add it to.

A rule's file has

- a docstring: what the rule guards against, and what happens without it;
- ``CODE``: the code of its findings, the file's name with hyphens;
- ``ABOUT``: ``head``, ``target``, ``load``, ``version`` or ``hardware``;
- ``VLLM_NOTICES``: whether vLLM itself refuses: ``at start``, ``on a request`` or ``never``;
- ``check(case)``: yields findings, and nothing where it does not know enough, or where another
  rule has already refused for the same cause.

A new rule also needs a fixture, one ``Broken`` in ``tests/unit/checks/corpus*.py``, and no more.
"""
