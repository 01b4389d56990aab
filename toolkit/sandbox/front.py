"""The sandbox's door: which call is answered by whom.

/endpoints/<name>/...   the runtime, streamed
/_peagle/...            the sandbox's own questions
X-Amz-Target in         quotas, prices: ``services``
all else                moto
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from toolkit.sandbox import control, faults, seeds
from toolkit.sandbox.client import CONTROL_PATH
from toolkit.sandbox.runtime.call import Answer, Call, Refusal
from toolkit.sandbox.runtime.invoke import BODY_LIMIT, PATH, invoke
from toolkit.sandbox.services import quotas
from toolkit.sandbox.services.table import OPERATIONS
from toolkit.sandbox.signature import scope_of

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

_OUR_HOST = re.compile(r"(.+\.)?localhost(:\d+)?|127\.0\.0\.1(:\d+)?")


def front(moto: Application) -> Application:
    """moto, with everything that is ours before it. A WSGI application."""

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        answer = _own_answer(environ)
        if answer is None:
            return _moto_answer(moto, environ, start_response)
        status = HTTPStatus(answer.status)
        start_response(f"{status.value} {status.phrase}", list(answer.headers.items()))
        return answer.body

    return application


def _moto_answer(
    moto: Application, environ: Environ, start_response: StartResponse
) -> Iterable[bytes]:
    scope = scope_of(environ.get("HTTP_AUTHORIZATION", ""))
    if scope and scope.service == "cloudformation":
        _install_stacks()
    answer = moto(environ, start_response)
    if environ["PATH_INFO"] == "/moto-api/reset":
        quotas.reset()
        faults.reset()
        seeds.sow()
    return answer


@functools.cache
def _install_stacks() -> None:
    from toolkit.sandbox.sagemaker import stacks

    stacks.install()


def _own_answer(environ: Environ) -> Answer | None:
    """Our answer; ``None`` for what is moto's."""
    if _is_from_a_web_page(environ):
        return Refusal(403, "", {"message": "the sandbox does not talk to web pages"}).answer
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path.startswith(f"{CONTROL_PATH}/"):
        return control.answer(method, path.removeprefix(CONTROL_PATH), _body(environ))
    runtime = PATH.fullmatch(path) if method == "POST" else None
    if runtime:
        return invoke(_call(environ, runtime["name"], runtime["operation"]))
    fault = faults.fault_of(environ.get("HTTP_X_AMZ_TARGET", ""))
    if fault:
        code, message = fault
        _body(environ)
        return Refusal(400, code, {"__type": code, "message": message}).answer
    return _service_answer(environ)


def _is_from_a_web_page(environ: Environ) -> bool:
    """Starting an engine is starting a program, so no page in a browser of this machine may ask
    for it: neither across origins nor through a name that leads to the loopback address."""
    return "HTTP_ORIGIN" in environ or not _OUR_HOST.fullmatch(environ.get("HTTP_HOST", ""))


def _call(environ: Environ, name: str, operation: str) -> Call:
    headers = {
        key.removeprefix("HTTP_").replace("_", "-").lower(): value
        for key, value in environ.items()
        if key.startswith("HTTP_") or key == "CONTENT_TYPE"
    }
    scope = scope_of(headers.get("authorization", ""))
    return Call(
        name=name,
        operation=operation,
        region=scope.region if scope else None,
        headers=headers,
        body=_body(environ, BODY_LIMIT + 1),
        client=environ.get("werkzeug.socket"),
    )


def _service_answer(environ: Environ) -> Answer | None:
    operation = OPERATIONS.get(environ.get("HTTP_X_AMZ_TARGET", ""))
    scope = scope_of(environ.get("HTTP_AUTHORIZATION", ""))
    if operation is None or scope is None:
        return None
    body = _body(environ)
    try:
        document = operation(scope.region, json.loads(body or b"{}"))
    except quotas.NoSuchQuota as error:
        return Refusal(400, error.code, {"__type": error.code, "message": str(error)}).answer
    if document is None:
        environ["wsgi.input"] = io.BytesIO(body)
        return None
    return _json_answer(document)


def _json_answer(document: Mapping[str, Any]) -> Answer:
    content = json.dumps(document).encode()
    headers = {"Content-Type": "application/x-amz-json-1.1", "Content-Length": str(len(content))}
    return Answer(200, headers, iter((content,)))


def _body(environ: Environ, limit: int | None = None) -> bytes:
    """The request's body, at most ``limit`` bytes of it."""
    if environ.get("wsgi.input_terminated"):  # sent in chunks
        return io.BufferedReader(environ["wsgi.input"]).read(-1 if limit is None else limit)
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length if limit is None else min(length, limit))
    return body
