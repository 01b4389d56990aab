"""The README shows the price as `peagle plan` does."""

import re
from dataclasses import replace

import pytest

from peagle.findings import note
from peagle.planning.plan import Plan, price_origin
from peagle.render.files import readme
from peagle.render.formats import format_names, render
from tests.unit.aws.plans import a_plan
from tests.unit.rendering.plans import CATALOG, plan_of

STAND_IN = note("price-not-from-aws", "price", "asked of the sandbox", "an account knows")


@pytest.mark.parametrize(("plan", "words"), [
    (a_plan(price_date="2026-07-01"), "(list price of 2026-07-01)"),
    (a_plan(price_date="2026-07-01", findings=(STAND_IN,)),
     "(not AWS's price, queried on 2026-07-01)"),
])  # fmt: skip
def test_the_readme_names_the_origin_of_the_price(plan: Plan, words: str) -> None:
    assert plan.price_per_hour_usd is not None
    assert words in readme(plan, CATALOG, "cdk").content.decode()
    assert price_origin(plan) in words


def test_tags_of_resources_are_not_the_tag_of_an_image() -> None:
    plan = a_plan()
    company = plan.company.model_copy(update={"tags": {"team": "search"}})
    text = readme(
        plan.model_copy(update={"company": company}), CATALOG, "dockerfile"
    ).content.decode()
    commands = re.findall(r"peagle (image build|deploy) ([^`\n]*)", text)
    flags = {command: "--resource-tag" in words.split() for command, words in commands}
    assert flags == {"image build": True, "deploy": False}
    assert all("team=search" in words for _, words in commands)


@pytest.mark.parametrize("format", format_names())
def test_commands_that_name_the_pair_keep_the_users_catalogue(format: str) -> None:
    extended = replace(CATALOG, is_extended=True)
    (text,) = (
        file.content.decode()
        for file in render(format, plan_of("from-hub"), extended)
        if file.path == "README.md"
    )
    for command in re.findall(r"peagle [^`\n]*openai/gpt-oss-20b", text):
        assert command.startswith("peagle --catalog DIR "), command
    assert ("--catalog" in text) == (format in {"dockerfile", "hyperpod", "kserve"})
