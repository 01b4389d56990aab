"""`peagle weights remove` names the endpoints that start from a prefix; sync what lies there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.aws.plans import a_plan
from toolkit.aws import records
from toolkit.aws.records import Deployment, Generation, Resource, ResourceType
from toolkit.aws.weights import Origin, Survey, place_of
from toolkit.aws.weights.manifest import Folder
from toolkit.checkpoints import FolderSource
from toolkit.cli.cloud import Account
from toolkit.cli.weights_used import refuse_used
from toolkit.cli.weights_words import fix_in_account, other_origins
from toolkit.errors import Refused
from toolkit.planning.models import MODEL_BUCKET, Mount

PLACE = place_of("s3://models/pair")


def _deployed(uri: str, kind: ResourceType = "Endpoint", scope: str = "sandbox") -> None:
    plan = a_plan(mounts=(Mount(channel=None, s3_uri=uri),))
    wanted = Generation(fingerprint="0a", plan=plan, role="r", bucket="models", config="c")
    made = Resource(type=kind, name="n", made=True, generation="0a")
    records.save(Deployment(name="peagle-chat", scope=scope, account="1", region="us-east-1",
                            wanted=wanted, resources=(made,)))  # fmt: skip


@pytest.mark.parametrize(
    "uri",
    ["s3://models/pair/", "s3://models/pair/target/", "s3://models/", f"s3://{MODEL_BUCKET}/pair/"],
)
def test_weights_that_an_endpoint_starts_from_are_not_removed(own_home: Path, uri: str) -> None:
    _deployed(uri)

    with pytest.raises(Refused, match="peagle-chat starts from s3://models/pair/") as refused:
        refuse_used(PLACE, "sandbox", Account(sandbox=True))

    assert "peagle destroy peagle-chat --sandbox" in refused.value.fix
    assert "--even-if-used" in refused.value.fix


def test_other_prefixes_accounts_and_what_has_no_endpoint_do_not_matter(own_home: Path) -> None:
    _deployed("s3://models/pair-2/")
    refuse_used(PLACE, "sandbox", Account(sandbox=True))
    _deployed("s3://models/pair/", "S3Objects")
    refuse_used(PLACE, "sandbox", Account(sandbox=True))
    _deployed("s3://models/pair/", scope="111122223333")
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
