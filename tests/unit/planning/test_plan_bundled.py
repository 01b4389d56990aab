"""Plans of the frozen catalogue: the same bytes every time, no side effects, the cheapest batch."""

import os
import subprocess
import sys
from itertools import product

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, Plan, make_plan
from peagle.render import plan_bytes
from tests.golden import assert_golden

pytestmark = pytest.mark.thorough
CATALOG = load_catalog()
GOLDEN: dict[str, Options] = {
    "tiny": Options(pair="tiny"),
    "tiny-baked": Options(
        pair="tiny",
        image=f"123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny@sha256:{'a' * 64}",
        baked_weights=True,
    ),
    "gpt-oss-20b": Options(pair="gpt-oss-20b"),
    "gpt-oss-20b-plain": Options(pair="gpt-oss-20b", speculation=False),
    "gpt-oss-120b-on-b200": Options(
        pair="gpt-oss-120b", instance_type="ml.p6-b200.48xlarge", region="us-west-2"
    ),
    "qwen3-coder-30b": Options(pair="qwen3-coder-30b", region="eu-central-1", concurrency=32),
    "gemma-4-31b": Options(pair="gemma-4-31b"),
    "gemma-4-31b-own-head": Options(pair="gemma-4-31b", drafter="s3://my-bucket/gemma-head"),
    "qwen3-8b-from-s3": Options(
        pair="qwen3-8b",
        model_source="s3://my-bucket/qwen3-8b",
        drafter="s3://my-bucket/head",
        instance_count=2,
    ),
    "gpt-oss-120b-streamed": Options(
        pair="gpt-oss-120b",
        model_source="s3://my-bucket/gpt-oss-120b/target/",
        drafter="s3://my-bucket/gpt-oss-120b/drafter/",
        weights_by="stream",
    ),
    "too-much": Options(pair="gpt-oss-20b", instance_type="ml.g4dn.xlarge", k=11, vllm="0.20.1"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_plans(name: str) -> None:
    made = make_plan(GOLDEN[name], CATALOG)
    assert_golden(f"plans/{name}.json", plan_bytes(made))


def test_the_same_input_gives_the_same_bytes_in_every_process() -> None:
    script = (
        "import sys\n"
        "from peagle.catalog import load_catalog\n"
        "from peagle.planning import Options, make_plan\n"
        "from peagle.render import plan_bytes\n"
        "plan = make_plan(Options(pair='gemma-4-31b', drafter='s3://b-b/h'), load_catalog())\n"
        "sys.stdout.buffer.write(plan_bytes(plan))\n"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
    )
    here: Plan = make_plan(Options(pair="gemma-4-31b", drafter="s3://b-b/h"), load_catalog())
    assert plan_bytes(here) == done.stdout


def test_planning_uses_neither_network_nor_disk() -> None:
    """All targets are read first, and difflib, which only unknown names need, is loaded; then an
    audit hook records every access."""
    script = (
        "import difflib, sys\n"
        "from peagle.catalog import load_catalog\n"
        "from peagle.planning import Options, make_plan\n"
        "from peagle.render import plan_bytes\n"
        "catalog = load_catalog()\n"
        "list(catalog.targets.values())\n"
        "plan_bytes(make_plan(Options(pair='gpt-oss-20b'), catalog))\n"
        "touched = []\n"
        "sys.addaudithook(lambda event, args: touched.append((event, args)))\n"
        "plan_bytes(make_plan(Options(pair='tiny'), catalog))\n"
        "plan_bytes(make_plan(Options(pair='gemma-4-31b', drafter='/no/head'), catalog))\n"
        "watched = ('open', 'socket', 'subprocess', 'os.', 'time', 'import')\n"
        "print([event for event, _ in list(touched) if event.startswith(watched)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == "[]"


# A batch is planned by its total cost, start included; of equal costs, the soonest end is chosen.
@pytest.mark.parametrize(
    ("pair", "requests", "hours"),
    [
        *product(["gpt-oss-20b", "qwen3-coder-30b"], [100, 10_000, 50_000], [8]),
        *product(["gpt-oss-20b", "qwen3-coder-30b"], [10_000], [1]),
        ("gpt-oss-20b", 1_000_000, 8),
    ],
)
def test_nothing_that_is_shown_is_cheaper_in_time(pair: str, requests: int, hours: int) -> None:
    plan = make_plan(Options(pair=pair, requests=requests, within=hours * 3600), CATALOG)
    assert plan.batch is not None
    assert plan.batch.usd is not None
    assert plan.batch.seconds is not None
    assert plan.batch.seconds <= hours * 3600
    assert plan.concurrency <= requests
    rows = [*plan.alternatives, *filter(None, [plan.without_speculation])]
    cheaper = [
        row.batch
        for row in rows
        if row.batch and row.batch.usd and row.verified and row.batch.usd * 1.03 < plan.batch.usd
    ]
    assert cheaper == []


def test_the_start_of_a_batch_is_that_of_scaling() -> None:
    options = Options(pair="gpt-oss-20b", requests=1000, concurrency=8)
    plan = make_plan(options, CATALOG)
    scaled = make_plan(options.model_copy(update={"scale_to_zero": True}), CATALOG)
    minutes = next(r.value for r in scaled.reasons if r.what == "start_time")
    assert plan.batch is not None
    assert minutes == f"about {plan.batch.start_seconds // 60} min"
