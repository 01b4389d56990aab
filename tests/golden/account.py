"""Commands against a fake AWS account, and every call that they send through boto3.

The account answers botocore's event ``before-call``: what uses boto3 in any way reaches it, after
botocore has validated the parameters. Time passes only in pauses.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.handlers
from botocore import xform_name
from botocore.exceptions import ClientError

from tests.golden.recordings import environment, replaced
from tests.support import Done, in_process
from tests.unit.aws.cloud import Cloud

NAME = "peagle-tiny"
READS = ("BatchGet", "Describe", "Filter", "Get", "Head", "Invoke", "List", "Simulate")
"""How the names of operations begin that change nothing in the account."""
_LONG = 800
"""Bytes of a body that is recorded by its digest."""
_MOMENTS = re.compile(r"(start|end)_?time$", re.IGNORECASE)
_PROVED = re.compile(r"\btime=\S+")
_IDS = re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_FINGERPRINT = re.compile(r"(?<!subnet-)(?<!sg-)(?<![\w.])[0-9a-f]{8}(?!\w)")
_CALL = "tests.golden: the parameters"
_ENDED_BY = re.compile(r'"code": "([a-z0-9-]+)"')
_KEPT = (
    "models", "configs", "endpoints", "buckets", "made_alarms", "dashboards", "metric_filters",
    "log_groups", "scaled", "policies", "wake_up_policies",
)  # fmt: skip


class _Objects(Cloud):
    """A fake account that also keeps the objects which boto3's transfers put."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[tuple[str, int], bytes] = {}

    def _put_object(self, Bucket: str, Key: str, Body: Any = b"", **more: Any) -> Any:
        content = Body if isinstance(Body, bytes) else Body.read()
        kept = {"ContentLength": len(content), "Content": content}
        self._bucket(Bucket)[Key] = kept | {"Metadata": more.get("Metadata", {})}
        return {"ETag": '"0"'}

    def _create_multipart_upload(self, Bucket: str, Key: str, **more: Any) -> Any:
        self._put_object(Bucket, Key, **more)
        return {"UploadId": "1"}

    def _upload_part(self, Bucket: str, Key: str, PartNumber: int, Body: bytes, **_: Any) -> Any:
        self.parts[(Key, PartNumber)] = Body
        return {"ETag": '"0"'}

    def _upload_part_copy(
        self, Key: str, CopySource: Any, PartNumber: int, CopySourceRange: str, **_: Any
    ) -> Any:
        first, _between, last = CopySourceRange.removeprefix("bytes=").partition("-")
        source = self._bucket(CopySource["Bucket"])[CopySource["Key"]]["Content"]
        self.parts[(Key, PartNumber)] = source[int(first) : int(last) + 1]
        return {"CopyPartResult": {"ETag": '"0"'}}

    def _complete_multipart_upload(self, Bucket: str, Key: str, **_: Any) -> Any:
        parts = sorted(part for part in self.parts if part[0] == Key)
        content = b"".join(map(self.parts.pop, parts))
        self._bucket(Bucket)[Key] |= {"ContentLength": len(content), "Content": content}
        return {"ETag": '"0"'}

    def answer(self, operation: str, parameters: dict[str, Any]) -> Any:
        """Policies are text, which botocore reads."""
        answer = super().answer(operation, parameters)
        for role in [answer["Role"]] if "Role" in answer else answer.get("Roles", ()):
            role["AssumeRolePolicyDocument"] = json.dumps(role["AssumeRolePolicyDocument"])
        return answer

    def _copy_object(self, Bucket: str, Key: str, CopySource: Any, **more: Any) -> Any:
        source = self._bucket(CopySource["Bucket"])[CopySource["Key"]]
        self._bucket(Bucket)[Key] = source | {"Metadata": more.get("Metadata", {})}
        return {"CopyObjectResult": {"ETag": '"0"'}}


class Account:
    """A fake account, and the machine whose commands reach it.

    ``folder`` is the working folder, ``changes`` the number of calls of the last command that
    changed something, without objects in S3; after the effect of number ``interrupt_after`` the
    user presses Ctrl-C.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cloud = _Objects()
        for size in ("xlarge", "2xlarge", "12xlarge"):
            for kind in ("g5", "g6"):
                self.cloud.quotas[f"ml.{kind}.{size} for endpoint usage"] = 8
        self.steps: list[dict[str, Any]] = []
        self.reads: list[tuple[str, Any]] = []
        self.interrupt_after = 0
        self._calls: list[tuple[str, Any]] = []
        self.changes = 0
        self._turn = threading.RLock()

    def peagle(self, line: str, **changed: Any) -> Done:
        """Run a command line, and record its calls and its end. ``changed``: attributes of the
        cloud, or of its ``engine``, which are set before."""
        for name, value in changed.items():
            setattr(self.cloud.engine if name == "acceptance" else self.cloud, name, value)
        self._calls.clear()
        self.changes = 0
        done = self._run(f"{line} --json")
        code = _ENDED_BY.search(done.err.splitlines()[-1]) if done.code and done.err else None
        self.steps.append(
            {
                "command": line,
                "code": done.code,
                **({"error": code[1]} if code else {}),
                "changes": _in_order([call for call in self._calls if not _is_read(call)]),
            }
        )
        self.reads += [call for call in self._calls if _is_read(call)]
        return done

    def copied(self, folder: Path) -> Account:
        """An account and a machine like these, to go on with apart."""
        shutil.copytree(self.folder, folder)
        other = Account(folder)
        other.cloud = copy.deepcopy(self.cloud)
        return other

    @property
    def resources(self) -> dict[str, list[str]]:
        """What exists in the account: the names by kind."""
        kinds = {kind: sorted(getattr(self.cloud, kind)) for kind in _KEPT}
        kinds["components"] = sorted(self.cloud.components)
        kinds["schedules"] = sorted(self.cloud.schedules)
        kinds["schedule_roles"] = sorted(self.cloud.schedule_roles)
        return {kind: names for kind, names in sorted(kinds.items()) if names}

    def _run(self, line: str) -> Done:
        keys = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}
        variables = environment(self.folder, **keys)
        clock = {"time": lambda: self.cloud.now, "sleep": self._sleep}
        with self._answering(), replaced(time, **clock):
            return in_process(*shlex.split(line), environment=variables, folder=self.folder)

    def _sleep(self, seconds: float) -> None:
        self.cloud.now += seconds

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Sessions of botocore that are created within the block reach this account."""
        usual: list[Any] = botocore.handlers.BUILTIN_HANDLERS
        handlers: list[Any] = [
            ("provide-client-params", self._remember),
            ("before-call", self._answer),
        ]
        with replaced(botocore.handlers, BUILTIN_HANDLERS=[*usual, *handlers]):
            yield

    def _remember(self, params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
        context[_CALL] = dict(params)

    def _answer(self, model: Any, context: Mapping[str, Any], **_: Any) -> Any:
        """The account's response to a call, as botocore parses it."""
        service, parameters = model.service_model.service_name, dict(context[_CALL])
        call = (f"{service}:{model.name}", parameters)
        if "Body" in parameters and not isinstance(parameters["Body"], bytes):
            parameters["Body"] = parameters["Body"].read()
        with self._turn:
            self._calls.append((call[0], {**parameters}))
            counted = not _is_read(call) and "Key" not in parameters
            self.changes += counted
            self.cloud.region = context["client_region"]
            try:
                answer = self.cloud.call(xform_name(model.name), **parameters)
            except ClientError as error:
                return SimpleNamespace(status_code=400), error.response
            finally:
                if counted and self.changes == self.interrupt_after:
                    signal.raise_signal(signal.SIGINT)
        return SimpleNamespace(status_code=200), answer


def masked(document: Any) -> Any:
    """The recording with fingerprints as numbers, in the order in which they appear."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"<{numbers.setdefault(match[0], len(numbers) + 1)}>"

    return json.loads(_FINGERPRINT.sub(number, json.dumps(document)))


def _is_read(call: tuple[str, Any]) -> bool:
    return call[0].partition(":")[2].startswith(READS)


def _in_order(calls: list[tuple[str, Any]]) -> list[list[Any]]:
    """The calls as they came; objects, which threads transfer, by their key."""
    ordered: list[tuple[str, Any]] = []
    for is_object, group in groupby(calls, key=lambda call: "Key" in call[1]):
        part = list(group)
        ordered += sorted(part, key=_part) if is_object else part
    return [[operation, shown(parameters)] for operation, parameters in ordered]


def _part(call: tuple[str, Any]) -> tuple[str, int, str]:
    return call[1]["Key"], call[1].get("PartNumber", 0), call[0]


def as_set(calls: list[tuple[str, Any]]) -> list[list[Any]]:
    """Each different call once, without moments: the number of reads is not part of
    the contract."""
    texts = {
        json.dumps([operation, shown(_timeless(parameters))]) for operation, parameters in calls
    }
    return [json.loads(text) for text in sorted(texts)]


def _timeless(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "TIME" if _MOMENTS.search(name) else v for name, v in parameters.items()}


def shown(value: Any) -> Any:
    """A parameter as it is recorded: JSON in a text is read, bytes have a digest, ids go."""
    if isinstance(value, dict):
        return {key: shown(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [shown(part) for part in value]
    if isinstance(value, bytes):
        if len(value) < _LONG and value.startswith(b'{"'):
            return {"json": shown(json.loads(value))}
        return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, str) and value.startswith('{"'):
        return {"json": shown(json.loads(value))}
    if isinstance(value, str):
        return _PROVED.sub("time=TIME", _IDS.sub("ID", value))
    return value if isinstance(value, int | float | bool | None) else str(value)
