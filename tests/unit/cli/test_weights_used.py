"""`peagle weights` names the endpoints that start from a prefix, and sync what lies there."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from peagle.checkpoints import FolderSource
from peagle.cli.account import Account
from peagle.cli.output.weights import fix_in_account, other_origins
from peagle.cli.weights_remove import refuse_replaced, refuse_used
from peagle.errors import Refused
from peagle.findings import warning
from peagle.planning.plan import MODEL_BUCKET
from peagle.weights import Origin, Survey, place_of
from peagle.weights.manifest import Folder
from tests.unit.cli.endpoints import deployed

PLACE = place_of("s3://models/pair")


@pytest.mark.parametrize(
    "uri",
    ["s3://models/pair/", "s3://models/pair/target/", "s3://models/", f"s3://{MODEL_BUCKET}/pair/"],
)
def test_weights_that_an_endpoint_starts_from_are_not_removed(own_home: Path, uri: str) -> None:
    deployed(uri)

    with pytest.raises(Refused, match="peagle-chat starts from s3://models/pair/") as refused:
        refuse_used(PLACE, "sandbox", Account(sandbox=True))

    assert "peagle destroy peagle-chat --sandbox" in refused.value.fix
    assert "--even-if-used" in refused.value.fix


@pytest.mark.parametrize(
    ("read", "code", "refused"),
    [("s3://models/pair/", "other-weights-there", True),
     ("s3://models/pair/drafter/", "other-weights-there", True),
     ("s3://models/pair/target/", "other-weights-there", False),
     ("s3://models/pair/drafter/", "objects-are-replaced", True),
     ("s3://models/pair/drafter/", "another-finding", False)],
)  # fmt: skip
def test_weights_that_an_endpoint_starts_from_are_not_replaced(
    own_home: Path, read: str, code: str, refused: bool
) -> None:
    deployed(read)
    found = warning(code, "s3://models/pair/drafter/", "is replaced", "")

    with pytest.raises(Refused) if refused else nullcontext() as said:
        refuse_replaced([found], "sandbox", Account(sandbox=True))

    if said is not None:
        assert "peagle-chat starts from s3://models/pair/drafter/" in said.value.message
        assert "peagle destroy peagle-chat --sandbox, or add --even-if-used" in said.value.fix


def test_other_prefixes_accounts_and_what_has_no_endpoint_do_not_matter(own_home: Path) -> None:
    deployed("s3://models/pair-2/")
    refuse_used(PLACE, "sandbox", Account(sandbox=True))
    deployed("s3://models/pair/", "S3Objects")
    refuse_used(PLACE, "sandbox", Account(sandbox=True))
    deployed("s3://models/pair/", scope="111122223333")
    refuse_used(PLACE, "sandbox", Account(sandbox=True))


def test_a_command_of_the_aws_cli_is_not_given_as_if_it_met_the_sandbox() -> None:
    rm = "aws s3 rm s3://models/a"

    assert fix_in_account(rm, Account()) == rm
    assert fix_in_account(rm, Account(profile="p")) == f"{rm} --profile p"
    assert "peagle sandbox env" in fix_in_account(rm, Account(sandbox=True))
    listed = "name that: peagle weights list s3://models/a/"
    assert fix_in_account(listed, Account(sandbox=True)) == f"{listed} --sandbox"


def test_a_copy_over_another_pair_says_which_one_lies_there() -> None:
    origins = {
        part: Origin(f"catalog:new/{part}", (), (0, 0), FolderSource(Path()))
        for part in ("target", "drafter")
    }
    there = {
        "target": Folder("catalog:new/target", True, {}, "peagle/tiny+p-eagle"),
        "drafter": Folder("catalog:old/drafter", True, {}, "peagle/tiny+p-eagle"),
    }

    (said,) = other_origins(Survey(PLACE, "us-east-1", origins, (), manifest=there))

    assert said.level == "warning"
    assert "the drafter of peagle/tiny+p-eagle, from catalog:old/drafter" in said.message
