"""The files of deployment records: ``$PEAGLE_HOME/deployments/<scope>/<region>/<name>.json``.

Written before and after every step. Without boto3, so that listing and completing names is quick.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import ValidationError

from peagle.catalog.documents import first_problem
from peagle.deploy.state import Deployment, weight_prefixes
from peagle.errors import Fix, NotFound, Refused, UserError, nearest
from peagle.store import SANDBOX, home, locked, read_json, write_text


class Ambiguous(UserError, code="ambiguous-name"):
    """Several deployments have this name."""


class DamagedRecord(UserError, code="record-damaged"):
    """A record of this machine, or a file of acceptances, cannot be read.
    Fix: delete the file: a deployment is then read from its tags in the account"""


def record_path(scope: str, region: str, name: str) -> Path:
    return home() / "deployments" / scope / region / f"{name}.json"


def save(record: Deployment) -> None:
    """Write the record atomically."""
    write_text(record_path(*record.key), record.model_dump_json(indent=2) + "\n")


def load_record(scope: str, region: str, name: str) -> Deployment | None:
    """The record, or ``None``. Raises DamagedRecord."""
    path = record_path(scope, region, name)
    return _read(path) if path.is_file() else None


def remove_record(record: Deployment) -> None:
    record_path(*record.key).unlink(missing_ok=True)


def readable_records(scope: str) -> tuple[tuple[Deployment, ...], tuple[UserError, ...]]:
    """All records of ``scope`` that can be read, and the errors about the others."""
    deployments: list[Deployment] = []
    errors: list[UserError] = []
    for path in _paths(scope):
        try:
            deployments.append(_read(path))
        except DamagedRecord as error:
            errors.append(error)
    return tuple(deployments), tuple(errors)


def deployment_names(scope: str | None = None) -> tuple[str, ...]:
    """The names of those deployments, without reading the records."""
    return tuple(sorted({path.stem for path in _paths(scope)}))


def deployment_regions(scope: str) -> tuple[str, ...]:
    """The regions of those deployments."""
    return tuple(sorted({path.parent.name for path in _paths(scope)}))


def find_record(name: str, scope: str | None = None, region: str | None = None) -> Deployment:
    """The deployment ``name``; raises NotFound, or Ambiguous when there are several."""
    named = [path for path in _paths(scope) if path.stem == name]
    paths = [path for path in named if region in (None, path.parent.name)]
    if len(paths) == 1:
        return _read(paths[0])
    if paths:
        places = ", ".join(f"{path.parent.name} of {path.parent.parent.name}" for path in paths)
        raise Ambiguous(f"{name} is deployed more than once: {places}", "choose with --region")
    hint = nearest(name, deployment_names(scope))
    fix = Fix(hint) if hint else Fix("list the deployments", ("peagle", "list"))
    if named:
        elsewhere = named[0].parent.name
        fix = Fix(f"it is in {elsewhere}", options=("--region", elsewhere))
    elif name in deployment_names(None if scope == SANDBOX else SANDBOX):
        fix = Fix(f"{'leave out' if scope == SANDBOX else 'add'} --sandbox")
    raise NotFound(f"there is no deployment {name!r}", fix, code="no-such-deployment")


@contextmanager
def deployment_lock(scope: str, region: str, name: str) -> Iterator[None]:
    """Lock the deployment against other peagle commands. The lock file is removed with the
    record."""
    record = record_path(scope, region, name)
    path = record.with_name(f".{name}.lock")
    with ExitStack() as holding:
        try:
            holding.enter_context(locked(path, wait=False))
        except BlockingIOError as error:
            message = f"another peagle command is changing {name}"
            raise UserError(message, "repeat the command later", "deployment-locked") from error
        try:
            yield
        finally:
            if not record.exists():
                path.unlink(missing_ok=True)


def _paths(scope: str | None) -> list[Path]:
    root = home() / "deployments"
    scopes = [root / scope] if scope else [f for f in root.glob("*") if f.name != SANDBOX]
    return sorted(path for folder in scopes for path in folder.glob("*/[!.]*.json"))


def _read(path: Path) -> Deployment:
    """The record in ``path``. Raises DamagedRecord: the contents of the account must not be
    guessed."""
    try:
        return Deployment.model_validate_json(json.dumps(read_json(path)))
    except (ValueError, TypeError, OSError) as error:
        reason = str(error).partition("\n")[0].replace(f"{path} ", "it ", 1)
        if isinstance(error, ValidationError):
            reason = first_problem(error, Deployment)
        raise DamagedRecord(
            f"the deployment record {path} is damaged, or of another version: {reason}",
            "delete the file: the deployment is then read from its tags in the account",
        ) from error


def refuse_weights_in_use(
    uris: Collection[str], scope: str, consequence: str, alternative: str = ""
) -> None:
    """Raise Refused when an endpoint of ``scope`` mounts or streams one of the prefixes, a folder
    of it, or a prefix that contains it. ``consequence`` says what would happen, ``alternative``
    what to do instead of removing them."""
    names = [
        record.name
        for record in map(_read, _paths(scope))
        if record.of_type("Endpoint")
        and any(
            prefix.startswith(uri) or uri.startswith(prefix)
            for revision in record.revisions
            for prefix in weight_prefixes(revision.served)
            for uri in uris
        )
    ]
    if names:
        fix = f"{alternative}remove what uses them first, or add --even-if-used"
        raise Refused(
            f"{', '.join(sorted(uris))}: in use by {', '.join(names)}: {consequence}",
            Fix(fix, ("peagle", "destroy", names[0])),
            code="weights-in-use",
        )
