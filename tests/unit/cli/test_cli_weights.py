"""``peagle weights``: what is refused at once, prices and progress."""

from pathlib import Path

import pytest

from peagle.account import Account
from peagle.cli.weights import use_command
from peagle.deploy.records import refuse_weights_in_use
from peagle.errors import Refused
from peagle.planning.plan import MODEL_BUCKET
from peagle.weights.bucket import FileEntry, FolderEntry
from peagle.weights.layout import weights_prefix
from tests.support import Peagle, raises_code
from tests.unit.cli.endpoints import deployed

PLACE = weights_prefix("s3://models/pair")


@pytest.mark.parametrize(("words", "message"), [
    (("s3://m", "--target-only"), "not an s3:// prefix"),
    (("s3://models/a", "--target-from", "nonsense"), "is not a weights location"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(
    peagle: Peagle, own_home: Path, words: tuple[str, ...], message: str
) -> None:
    done = peagle("weights", "sync", "tiny", *words, "--sandbox", "--yes")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Starting the sandbox" not in done.stderr


def test_a_pair_without_a_head_has_no_drafter_to_copy(peagle: Peagle, own_home: Path) -> None:
    done = peagle("weights", "sync", "tiny+ngram", "s3://models/a", "--drafter-only", "--sandbox")
    assert done.returncode == 2
    assert "drafts without weights" in done.stderr


def test_the_command_that_uses_weights_names_their_parts_region_and_account() -> None:
    folder = FolderEntry("a/b", complete=True)
    both = use_command("tiny", PLACE, {"target": folder, "drafter": folder}, "us-east-1", Account())
    far = use_command("tiny", PLACE, {"drafter": folder}, "eu-west-1", Account(profile="work"))
    assert both == (
        "peagle", "plan", "tiny", "--model-source", "s3://models/pair/target/",
        "--drafter", "s3://models/pair/drafter/",
    )  # fmt: skip
    assert far == (
        "peagle", "plan", "tiny", "--drafter", "s3://models/pair/drafter/",
        "--region", "eu-west-1", "--online",
    )  # fmt: skip


def test_the_command_that_uses_weights_names_the_vocabulary_beside_them() -> None:
    target = FolderEntry("a/b", complete=True, files={"o200k_base.tiktoken": FileEntry(1)})
    head = FolderEntry("a/c", complete=True)
    both = use_command("tiny", PLACE, {"target": target, "drafter": head}, "us-east-1", Account())
    alone = use_command("tiny", PLACE, {"target": target}, "us-east-1", Account())
    assert "TIKTOKEN_ENCODINGS_BASE=/opt/ml/model/target" in both
    assert alone[-2:] == ("--env", "TIKTOKEN_ENCODINGS_BASE=/opt/ml/model")


# `peagle weights` names the endpoints that use a prefix, and the weights that a sync replaces.
@pytest.mark.parametrize("uri", [
    "s3://models/pair/", "s3://models/pair/target/", "s3://models/", f"s3://{MODEL_BUCKET}/pair/",
])  # fmt: skip
def test_weights_that_an_endpoint_uses_are_refused(own_home: Path, uri: str) -> None:
    deployed(uri)
    with raises_code("weights-in-use", Refused) as refused:
        refuse_weights_in_use({PLACE.uri}, "sandbox", "it ends")
    assert {"s3://models/pair/:", "peagle-chat:"} <= {*refused.value.message.split()}
    assert refused.value.command == ("peagle", "destroy", "peagle-chat")


def test_other_prefixes_accounts_and_deployments_without_endpoint_do_not_matter(
    own_home: Path,
) -> None:
    deployed("s3://models/pair-2/")
    refuse_weights_in_use({PLACE.uri}, "sandbox", "")
    deployed("s3://models/pair/", "S3Objects")
    refuse_weights_in_use({PLACE.uri}, "sandbox", "")
    deployed("s3://models/pair/", scope="123456789012")
    refuse_weights_in_use({PLACE.uri}, "sandbox", "")
