"""``peagle plan --online``: today's prices and the account's quota, or the snapshot and why."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from peagle.aws import prices
from peagle.aws.client import Aws
from peagle.aws.errors import CREDENTIALS_FIX
from peagle.catalog.tables import Price
from peagle.errors import UserError
from peagle.store import SANDBOX
from tests.support import Done
from tests.unit.aws.cloud import service_error
from tests.unit.cli.commands import Terminal

PLAN = ("plan", "tiny", "--instance-type", "ml.g5.xlarge", "--online")


def codes(done: Done) -> dict[str, str]:
    return {
        finding["code"]: finding["level"]
        for finding in done.document["findings"]
        if finding["code"].startswith(("price-", "quota-"))
    }


def deny(terminal: Terminal, *operations: str, code: str = "AccessDeniedException") -> None:
    def refuse(operation: str) -> None:
        if operation in operations:
            raise service_error(code, "no", operation)

    terminal.cloud.before = refuse


def test_the_price_is_today_s(terminal: Terminal) -> None:
    terminal.cloud.price = 1.11
    done = terminal.succeeds(*PLAN, "--json")
    assert done.document["price_per_hour_usd"] == 1.11
    assert done.document["price_date"] == datetime.now(UTC).date().isoformat()
    assert codes(done) == {"quota-enough": "note"}


@pytest.mark.thorough
def test_missing_weights_are_an_error_of_the_plan_as_they_are_of_deploy(terminal: Terminal) -> None:
    words = ("plan", "tiny", "--model-source", "s3://models/tiny/target/", "--online", "--json")

    def levels_of_weights() -> tuple[int, dict[str, str]]:
        done = terminal.run(*words)
        findings = done.document["findings"]
        levels = {f["code"]: f["level"] for f in findings if f["code"].startswith("weights-")}
        return done.code, levels

    assert levels_of_weights() == (3, {"weights-missing": "error"})
    deny(terminal, "head_bucket", "list_objects_v2", "get_object")
    assert levels_of_weights() == (0, {"weights-not-seen": "warning"})


def test_without_credentials_the_findings_say_how_to_get_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(aws: Aws, *_: Any, **__: Any) -> Any:
        raise UserError("no AWS credentials: none found", CREDENTIALS_FIX)

    monkeypatch.setattr(Aws, "items", unreachable)
    monkeypatch.setattr(Aws, "call", unreachable)
    done = terminal.run(*PLAN, "--json")
    assert codes(done) == {"price-snapshot": "warning", "quota-unknown": "warning"}
    fixes = {finding["code"]: finding["fix"] for finding in done.document["findings"]}
    assert fixes["price-snapshot"] == CREDENTIALS_FIX.sentence
    assert fixes["quota-unknown"].startswith(CREDENTIALS_FIX.sentence)


@pytest.mark.thorough
def test_a_stand_in_s_prices_are_not_called_amazon_s(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = Price(usd_per_hour=1, region="us-east-1", date=date(2026, 11, 1), source=SANDBOX)
    monkeypatch.setattr(prices, "hosting_prices", lambda aws: {"ml.g5.xlarge": price})
    assert codes(terminal.run(*PLAN, "--json"))["price-not-from-aws"] == "note"
    assert "(not AWS's price, queried on " in terminal.run(*PLAN).out


@pytest.mark.thorough
def test_today_s_prices_decide_what_is_chosen(terminal: Terminal) -> None:
    terminal.cloud.price = 0.01  # of ml.g5.xlarge, which is not the cheapest by the snapshot
    assert terminal.run("plan", "tiny", "--online", "--json").document["instance_type"] == (
        "ml.g5.xlarge"
    )
    assert terminal.run("plan", "tiny", "--json").document["instance_type"] != "ml.g5.xlarge"


@pytest.mark.parametrize(("code", "words"), [
    ("AccessDeniedException", "access denied: pricing:"),
    ("ThrottlingException", "get_products"),
    ("ExpiredTokenException", "expired"),
])  # fmt: skip
def test_denied_query_falls_back_to_the_snapshot_with_a_warning(
    terminal: Terminal, code: str, words: str
) -> None:
    snapshot = terminal.run("plan", "tiny", "--instance-type", "ml.g5.xlarge", "--json").document
    deny(terminal, "get_products", "get_service_quota", "list_service_quotas", code=code)
    done = terminal.succeeds(*PLAN, "--json")
    assert done.document["price_per_hour_usd"] == snapshot["price_per_hour_usd"]
    assert done.document["price_date"] == snapshot["price_date"]
    reported = {f["code"]: f["message"] for f in done.document["findings"]}
    assert words in reported["price-snapshot"]
    assert "cannot read the quota" in reported["quota-unknown"]


def test_plan_file_gets_current_prices_and_keeps_rest(terminal: Terminal, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    terminal.run("plan", "tiny", "--instance-type", "ml.g5.xlarge", "--instance-count", "2",
                 "--out", file)  # fmt: skip
    before = json.loads(Path(file).read_text())
    terminal.cloud.price = 3.0
    done = terminal.run("plan", file, "--online", "--json")
    assert done.document["price_per_hour_usd"] == 6.0
    changed = {key for key in before if before[key] != done.document.get(key)}
    assert changed <= {"price_per_hour_usd", "price_date", "findings", "digest"}
