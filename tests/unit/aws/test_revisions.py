"""Weights of the Hub are planned at the commit that their branch has now."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.checkpoints.hub import Hub
from peagle.checkpoints.models import hub_snapshot
from peagle.findings import Finding
from peagle.planning import Options, make_plan
from peagle.planning.plan import Plan, Weights
from peagle.weights.mounted import pin_revisions
from tests.unit.checkpoints.web import Reply, Web, serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
QWEN = "qwen3-8b"


@pytest.fixture
def web() -> Iterator[Web]:
    """A Hub whose repositories are all at one commit."""
    web = Web()
    web.answer = lambda request: Reply(200, f'{{"sha": "{COMMIT}"}}'.encode())
    with serve(web):
        yield web


def planned(web: Web, **options: object) -> tuple[Plan, Plan, tuple[Finding, ...]]:
    """The plan without asking the Hub, the plan at commits, and findings."""
    catalog = load_catalog()
    before = make_plan(Options(pair=QWEN, **options), catalog)  # type: ignore[arg-type]
    pinned, head, reasons, findings = pin_revisions(catalog, before, lambda: Hub(web.url))
    drafter = {"drafter": head} if head else {}
    after = make_plan(Options(pair=QWEN, **{**options, **drafter}), pinned)  # type: ignore[arg-type]
    commits = [reason.value for reason in reasons if reason.what == "drafter commit"]
    assert commits == ([] if findings else [COMMIT])
    return before, after, findings


def head_of(plan: Plan) -> Weights:
    assert plan.drafter.weights is not None
    return plan.drafter.weights


@pytest.mark.thorough
def test_a_drafter_on_a_branch_is_planned_at_its_commit(web: Web) -> None:
    before, after, _ = planned(web)
    assert head_of(before).revision == "main"
    assert head_of(after).revision == COMMIT
    assert COMMIT in after.environment["SM_VLLM_SPECULATIVE_CONFIG"]
    assert after.target.weights.revision == before.target.weights.revision, "was a commit before"
    assert "revision-not-pinned" in {finding.code for finding in before.findings}
    assert "revision-not-pinned" not in {finding.code for finding in after.findings}


def test_a_head_of_the_users_own_is_planned_at_its_commit(web: Web) -> None:
    _, after, _ = planned(web, drafter="acme/head@v1")
    assert head_of(after).revision == COMMIT
    (request,) = web.requests
    assert request.path.endswith("/acme/head/revision/v1")


@pytest.mark.parametrize("reply", [
    Reply(500, b"{}"), Reply(200, b"[]"), Reply(200, b"\xff"), Reply(200, b'{"sha": "main"}'),
])  # fmt: skip
def test_an_answer_that_is_no_commit_is_a_note(web: Web, reply: Reply) -> None:
    web.answer = lambda request: reply
    before, after, (finding,) = planned(web)
    assert after.drafter == before.drafter
    assert (finding.code, finding.level) == ("revision-not-resolved", "note")


def test_commits_and_weights_elsewhere_are_not_asked_for(web: Web) -> None:
    catalog = load_catalog()
    plan = make_plan(Options(pair="tiny"), catalog)
    assert pin_revisions(catalog, plan, lambda: Hub(web.url)) == (catalog, None, (), ())
    assert web.requests == []


def test_a_folder_of_the_hubs_cache_knows_its_commit(tmp_path: Path) -> None:
    folder = tmp_path / "models--acme--my.head" / "snapshots" / COMMIT
    assert hub_snapshot(str(folder)) == f"acme/my.head@{COMMIT}"
