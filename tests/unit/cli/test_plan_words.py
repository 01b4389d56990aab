"""What a plan says in its verdict, findings and hints, of its arguments, and to the shell."""

import re
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.cli.view.plan import MEANINGS, explain
from peagle.planning import Options, make_plan
from tests.support import in_process


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_a_load_above_the_context_has_neither_price_nor_speed(more: tuple[str, ...]) -> None:
    refused = in_process("plan", "tiny", "--workload", "agent", *more)
    assert (refused.code, "exceed the context" in refused.out) == (3, True)
    assert not re.search(r"\$|tokens/s|USD", refused.out)
    made = in_process("plan", "tiny", "--workload", "agent", "--json").document
    estimates = [made["speed"], made["without_speculation"], *made["alternatives"]]
    assert {estimate["basis"] for estimate in estimates} == {"unknown"}
    assert not any(estimate["usd_per_million_tokens"] for estimate in estimates)


@pytest.mark.parametrize(("words", "typed", "name"), [
    ((), "gpt-oss-20", "gpt-oss-20b"),
    ((), "gpt-oss-20b+p", "gpt-oss-20b+p-eagle"),
])  # fmt: skip
def test_shell_completes_names_of_catalogue(words: tuple[str, ...], typed: str, name: str) -> None:
    names = completions("plan", *words, typed)
    assert name in names
    assert all(name.startswith(typed) for name in names)


def test_completion_shows_no_errors(tmp_path: Path) -> None:
    (tmp_path / "instances.yaml").write_text("[")
    assert completions("--catalog", str(tmp_path), "plan", "gpt") == []


def completions(*words: str) -> list[str]:
    complete = ShellComplete(cli, {}, "peagle", "_PEAGLE_COMPLETE")
    return [item.value for item in complete.get_completions([*words[:-1]], words[-1])]


CATALOG = load_catalog()
ONE_OF_EACH_GPU = list({i.gpu_architecture: i.type for i in CATALOG.instances.instances}.values())


@pytest.mark.thorough
@pytest.mark.parametrize("target_id", CATALOG.targets)
def test_every_argument_that_a_pair_can_get_has_a_meaning(target_id: str) -> None:
    """With each drafter, and with the first one on each GPU."""
    target = CATALOG.targets[target_id]
    settings = {setting.name for setting in target.engine_arguments}
    settings |= {s.name for drafter in target.drafters for s in drafter.engine_arguments}
    assert {f"--{name}" for name in settings} <= set(MEANINGS)
    first, *others = [f"{target.short_name}+{drafter.name}" for drafter in target.drafters]
    some = [(first, instance_type) for instance_type in ONE_OF_EACH_GPU]
    for pair, instance_type in [*some, *((pair, None) for pair in others)]:
        made = make_plan(Options(pair=pair, instance_type=instance_type), CATALOG)
        for name, _, meaning in explain(made.engine_arguments):
            assert meaning, (pair, name)
