"""Training data: conversations in files, in S3, and in what SageMaker captured of an endpoint.
docs/train.md has the forms of a row, what is left out, and how questions are held out."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from peagle import findings
from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.aws.s3 import read_lines
from peagle.bench.workloads import Domain, is_random_prompt
from peagle.catalog.documents import first_problem
from peagle.checkpoints.entries import PROOF_PROMPTS
from peagle.errors import NotFound, PeagleError, UserError
from peagle.findings import Finding, Level
from peagle.protocol import pieces_in
from peagle.render.resources import captured_prefix
from peagle.s3uri import S3Uri
from peagle.store import write_file
from peagle.text import json_digest
from peagle_serve import json_reader
from peagle_serve.contract import is_s3_uri
from peagle_serve.json_reader import InvalidJson, open_regular

CAPTURE = "capture:"
"""Before the name of an endpoint, as a source."""

TRAIN_FILE, HELD_OUT_FILE = "train.jsonl", "held_out.jsonl"

MOST_PROMPTS = 200
"""Held-out prompts on which acceptance is measured, at most."""

_LARGEST_ROW = 32 << 20
"""Bytes: a captured request and answer have 6 MiB each, and 8 in base64."""

_TOO_LONG, _OURS, _REPEATED = "too-long", "sent-by-peagle", "repeated-turns"

TOKEN_BYTES = 4
"""UTF-8 bytes of text per token. The toolkit has no tokenizer: lengths are estimates."""

_FORM = (
    'write lines such as {"messages": [{"role": "user", "content": "..."}]} or {"prompt": "..."}'
)
_SOURCES = f"name a file or folder of JSON lines, s3://BUCKET/PREFIX or {CAPTURE}ENDPOINT"
_ENDING = ".jsonl"
_ROLES = {"human": "user", "user": "user", "system": "system", "developer": "system",
          "tool": "tool", "function": "tool"}  # fmt: skip
"""A role of any other name is a model's."""

_KEPT_KEYS = ("tool_calls", "tool_call_id", "reasoning_content")

Message = dict[str, Any]
Connect = Callable[[], Aws]


@dataclass(frozen=True)
class Conversation:
    """``messages`` have ``role`` and ``content``, and what belongs to calls of the ``tools``.
    ``id`` is a digest of them, since a trainer resumes by it and files repeat theirs; ``question``
    one of the first question. ``answered``: the last message is an answer."""

    id: str
    domain: str
    messages: tuple[Message, ...]
    answered: bool
    question: str
    tools: tuple[Any, ...] = ()

    @property
    def prompt(self) -> list[Message]:
        """The messages up to the last question."""
        last = max(n for n, message in enumerate(self.messages) if message["role"] == "user")
        return list(self.messages[: last + 1])


@dataclass(frozen=True)
class TrainingData:
    """Conversations to train with, and those that acceptance is measured on, which share no
    question. ``sha256`` is of both. ``left_out`` counts the other rows by the reason."""

    sources: tuple[str, ...]
    train: tuple[Conversation, ...]
    held_out: tuple[Conversation, ...]
    sha256: str
    left_out: Mapping[str, int]
    findings: tuple[Finding, ...]


def grows(sources: Sequence[str]) -> bool:
    """Whether a later call may read more: what an endpoint captures, or lies in S3. A training
    keeps what it has read first, so that it can go on."""
    return any(source.startswith((CAPTURE, "s3://")) for source in sources)


class _Row(BaseModel):
    """A line that is not a captured record."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    domain: Domain = "all"
    messages: list[Message] = []
    conversations: list[Message] = []
    prompt: str | None = None
    completion: str | None = None
    tools: list[Any] = []


def read_training_data(
    sources: Sequence[str],
    connect: Connect,
    *,
    held_out: float | Path = 0.1,
    context: int | None = None,
    proof_prompts: Collection[str] = (),
) -> TrainingData:
    """The conversations of all ``sources``: files, folders, ``s3://`` objects and prefixes, and
    ``capture:ENDPOINT``; ``connect`` gives the account for the last two. ``held_out`` is a share of
    the questions, or a file whose questions are then left out of the training. Left out are prompts
    that are, by an estimate, longer than a ``context`` of so many tokens, and what the toolkit
    itself sends: random prompts, those of every proof, and ``proof_prompts``, which targets have of
    their own. Raises UserError."""
    beginnings, overlap = (*PROOF_PROMPTS, *proof_prompts), 0
    conversations, left_out = _read_usable(sources, connect, beginnings, context)
    if isinstance(held_out, Path):
        held, others = _read_usable([str(held_out)], connect, beginnings, context)
        left_out += others
        questions = {each.question for each in held}
        overlap = sum(each.question in questions for each in conversations)
    else:
        questions = _choose_questions(conversations, held_out)
        held = [each for each in conversations if each.question in questions]
    train = [each for each in conversations if each.question not in questions]
    if not train or not held:
        message = "all conversations begin with the same question, so that none can be held out"
        if overlap:
            message = f"{held_out} has every question of the training data"
        fix = "name data with other questions, or a file of them with --held-out"
        raise UserError(message, fix, code="data-one-question")
    return TrainingData(
        sources=tuple(sources),
        train=tuple(train),
        held_out=tuple(held),
        sha256=json_digest([[each.messages for each in part] for part in (train, held)]),
        left_out=left_out,
        findings=tuple(_findings(train, held, left_out, overlap, context)),
    )


def _findings(
    train: Sequence[Conversation],
    held: Sequence[Conversation],
    left_out: Mapping[str, int],
    overlap: int,
    context: int | None,
) -> Iterator[Finding]:
    if not any(each.answered for each in train):
        message = "no row has an answer: their length is that of --output-tokens, or the longest"
        fix = "set --output-tokens of `peagle train plan` to the usual length of an answer"
        yield findings.note("data-no-answers", "data", message, fix)
    if left_out:
        level: Level = "note" if {*left_out} <= {_OURS, _REPEATED} else "warning"
        message = f"rows were left out: {_count(left_out)}"
        fix = "correct those that are yours, or go on without"
        yield findings.finding(level, "data-left-out", "data", message, fix)
    longer = [each for each in train if context and _count_tokens(each.messages) > context]
    if longer:
        message = f"conversations longer than {context:,} tokens, by an estimate, are cut there"
        message += f": {len(longer):,} of {len(train):,}"
        fix = "pass a longer --sequence-length, as far as the target's context and memory allow"
        yield findings.warning("data-cut", "data", message, fix)
    if overlap:
        message = f"conversations that begin with a held-out question are not used: {overlap:,}"
        fix = "hold out text that the training data does not have"
        yield findings.warning("data-leak", "held_out", message, fix)
    if len(domains := {each.domain for each in held}) == 1:
        message = f"all held-out text is of one domain ({domains.pop()})"
        fix = "give rows a domain, such as code or chat, to see the acceptance of each"
        yield findings.note("data-one-domain", "data", message, fix)


def _read_usable(
    sources: Sequence[str], connect: Connect, beginnings: tuple[str, ...], context: int | None
) -> tuple[list[Conversation], Counter[str]]:
    """The conversations in the rows of the sources, and the number of other rows by the reason.
    Left out are also those whose questions all have one of the ``beginnings``: the second turn of a
    proof without a chat template begins with the first one's text. Raises UserError where no
    conversation is left."""
    conversations: list[Conversation] = []
    others = Counter[str]()
    rows = 0
    for place, line in chain.from_iterable(_lines(source, connect) for source in sources):
        rows += 1
        conversation = _parse(line, place)
        if isinstance(conversation, str):
            others[conversation] += 1
            continue
        questions = [each["content"] for each in conversation.messages if each["role"] == "user"]
        if all(each.startswith(beginnings) for each in questions) or is_random_prompt(questions[0]):
            others[_OURS] += 1
        else:
            conversations.append(conversation)
    if not conversations:
        source = ", ".join(sources)
        if rows == others[_OURS]:
            message = f"{source} has no rows"
            message += " but those of `peagle prove` and `peagle bench`" if rows else ""
            fix = f"name {_ENDING} files with rows; captured requests appear some minutes later"
            raise UserError(message, fix, code="no-data")
        message = f"{source} has no row with a question, of {rows:,} ({_count(others)})"
        raise UserError(message, _FORM, code="data-without-text")
    unique = _longest(conversations)
    fitting = [each for each in unique if context is None or _count_tokens(each.prompt) < context]
    if not fitting:
        message = f"every prompt is longer than the context of {context:,} tokens, by an estimate"
        fix = "shorten them, or pass a longer --sequence-length if the target's context has it"
        raise UserError(message, fix, code="data-too-long")
    others[_REPEATED] += len(conversations) - len(unique)
    others[_TOO_LONG] += len(unique) - len(fitting)
    return fitting, +others  # without zeros


def _count(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def _count_tokens(messages: Iterable[Message]) -> int:
    return sum(len(each["content"].encode()) for each in messages) // TOKEN_BYTES


def _lines(source: str, connect: Connect) -> Iterator[tuple[str, bytes]]:
    """The lines of a source that are not blank, each with its place for messages."""
    if source.startswith(CAPTURE):
        source = find_captured(connect(), source.removeprefix(CAPTURE)).uri
    if is_s3_uri(source):
        place = S3Uri.parse(source)
        if not place.has_bucket_name:
            raise UserError(f"{source} names no bucket", _SOURCES, code="data-unreadable")
        parts = read_lines(connect(), place, _ENDING)
    else:
        path = Path(source).expanduser()
        files = sorted(path.rglob(f"*{_ENDING}")) if path.is_dir() else [path]
        parts = ((str(file), _file_lines(file)) for file in files)
    for name, lines in parts:
        for number, line in enumerate(lines, 1):
            if content := line.removeprefix(b"\xef\xbb\xbf").strip():
                yield f"{name}, line {number}", content


def _file_lines(file: Path) -> Iterator[bytes]:
    try:
        with open_regular(file) as stream:
            yield from iter(lambda: stream.readline(_LARGEST_ROW + 1), b"")
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}"
        raise UserError(message, _SOURCES, code="data-unreadable") from error


def find_captured(aws: Aws, endpoint: str) -> S3Uri:
    """The prefix of what SageMaker captures of the endpoint. Raises NotFound for an unknown one,
    and UserError for one that captures nothing."""
    try:
        name = sagemaker.description(aws, "Endpoint", endpoint)["EndpointConfigName"]
        config = sagemaker.description(aws, "EndpointConfig", name)
    except Missing as error:
        fix = "list endpoints with peagle list, or name the s3:// prefix of what was captured"
        raise NotFound(f"there is no endpoint {endpoint} in {aws.region}", fix) from error
    capture = config.get("DataCaptureConfig") or {}
    if not capture.get("EnableCapture", bool(capture)):
        message = f"the endpoint {endpoint} captures no requests"
        fix = "deploy it with --capture-data s3://BUCKET/FOLDER, or name the s3:// prefix to read"
        raise UserError(message, fix, "no-capture")
    return captured_prefix(capture["DestinationS3Uri"], endpoint)


def _parse(line: bytes, place: str) -> Conversation | str:
    """The conversation of a row, or why it has none. Raises UserError."""
    try:
        document = json_reader.read(line, "the row", limit=_LARGEST_ROW)
        if not isinstance(document, dict):
            raise InvalidJson("the row", "is not an object")
        if "input_ids" in document:
            message = f"{place}: the row has token ids, which another tokenizer may have made"
            fix = "give the text instead, as messages or prompt: the target's tokenizer reads it"
            raise UserError(message, fix, "data-token-ids")
        captured = "captureData" in document
        row = _Row.model_validate(_captured_row(document) if captured else document)
        if not (captured or {"messages", "conversations", "prompt"} & row.model_fields_set):
            raise InvalidJson("the row", "has neither messages nor prompt nor conversations")
    except InvalidJson as error:
        fix = "write one object per line: jq -c '.[]' FILE" if line.startswith(b"[") else _FORM
        raise UserError(f"{place}: {error}", fix, code="data-not-json-lines") from error
    except ValidationError as error:
        if captured:
            return "not-a-chat"
        message = f"{place}: {first_problem(error, _Row)}"
        raise UserError(message, _FORM, "data-not-json-lines") from error
    messages = [_message(each) for each in row.messages or row.conversations]
    if not messages and row.prompt:
        messages = [{"role": "user", "content": row.prompt}]
        messages += [{"role": "assistant", "content": row.completion}] if row.completion else []
    questions = [each["content"] for each in messages if each["role"] == "user"]
    if any(each["content"] is None for each in messages):
        return "not-text"
    if not any(text.strip() for text in questions):
        return "not-a-chat" if captured else "without-text"
    return Conversation(
        id=json_digest(messages)[:16],
        domain=row.domain,
        messages=tuple(messages),
        answered=messages[-1]["role"] == "assistant",
        question=sha256(" ".join(questions[0].casefold().split()).encode()).hexdigest(),
        tools=tuple(row.tools),
    )


def _message(message: Mapping[str, Any]) -> Message:
    """A message of OpenAI's API or of ShareGPT with the text of its parts as ``content``, which is
    ``None`` where a part is no text."""
    content = message.get("content", message.get("value")) or ""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        strings = [text for text in texts if isinstance(text, str)]
        content = "".join(strings) if len(strings) == len(texts) else None
    role = _ROLES.get(str(message.get("role", message.get("from"))), "assistant")
    kept = {key: message[key] for key in _KEPT_KEYS if message.get(key)}
    if reasoning := message.get("reasoning"):  # as vLLM calls it
        kept["reasoning_content"] = reasoning
    return {"role": role, "content": content if isinstance(content, str) else None, **kept}


def _captured_row(document: dict[str, Any]) -> dict[str, Any]:
    """The row of a captured request with the answer to it; empty if there is no chat in it."""
    row: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        request = dict(json_reader.read(_captured_bytes(document, "endpointInput"), "the request"))
        row = {key: request[key] for key in ("messages", "prompt", "tools") if request.get(key)}
    answer = _captured_answer(_captured_bytes(document, "endpointOutput"))
    if answer and isinstance(row.get("messages"), list):
        row["messages"] = [*row["messages"], {"role": "assistant", **answer}]
    elif answer:
        row["completion"] = answer["content"]
    return row


def _captured_bytes(document: dict[str, Any], name: str) -> bytes:
    """A request or an answer as it was sent; empty where it was not captured."""
    with suppress(LookupError, TypeError, ValueError, AttributeError):
        part = document["captureData"][name]
        data: str = part["data"]
        return b64decode(data) if part["encoding"] == "BASE64" else data.encode()
    return b""


def _captured_answer(data: bytes) -> Message:
    """The message in an answer, or its text; empty for one that broke off or is an error."""
    with suppress(PeagleError, ValueError, LookupError, TypeError, AttributeError):
        if data.startswith(b"data:"):
            pieces = list(pieces_in([data]))
            text = "".join(piece.text for piece in pieces)
            reasoning = "".join(piece.reasoning for piece in pieces)
            return {"content": text, "reasoning": reasoning} if text else {}
        choice = json_reader.read(data, "the answer")["choices"][0]
        message = dict(choice.get("message") or {"content": choice["text"]})
        return message if message.get("content") or message.get("tool_calls") else {}
    return {}


def _longest(conversations: Iterable[Conversation]) -> list[Conversation]:
    """The conversations that no other one continues or repeats, whatever the answers are. Of
    repeated ones, the one with an answer."""
    by_turns: dict[str, Conversation] = {}
    beginnings: set[str] = set()
    for conversation in conversations:
        turns = ""
        passed: list[str] = []
        for message in conversation.messages:
            if message["role"] != "assistant":
                turns = json_digest([turns, message["role"], message["content"]])
                passed.append(turns)
        beginnings.update(passed[:-1])
        if conversation.answered and not by_turns.get(turns, conversation).answered:
            by_turns[turns] = conversation
        by_turns.setdefault(turns, conversation)
    return [each for turns, each in by_turns.items() if turns not in beginnings]


def _choose_questions(conversations: Sequence[Conversation], share: float) -> set[str]:
    """The digests of the questions that are held out: those below ``share`` of all digests, at
    least one of each domain, and not all of one, if it has several questions."""
    below = share * 2**64
    chosen = {each.question for each in conversations if int(each.question[:16], 16) < below}
    domains: dict[str, set[str]] = {}
    for each in conversations:
        domains.setdefault(each.domain, set()).add(each.question)
    for questions in domains.values():
        if len(questions) > 1 and not questions & chosen:
            chosen.add(min(questions))
        if len(questions) > 1 and questions <= chosen:
            chosen.discard(max(questions))
    return chosen


def write_conversations(
    conversations: Iterable[Conversation], file: Path, *, keep_answers: bool = False
) -> int:
    """Write the rows that ``speculators regenerate-responses`` asks the target, without answers;
    with ``keep_answers`` those that its ``prepare-data`` renders, which are the ones with answers.
    Returns their number."""
    rows = []
    for each in conversations:
        messages = list(each.messages)
        if keep_answers:
            while messages and messages[-1]["role"] != "assistant":
                messages.pop()
        else:
            messages = [m for m in messages if m["role"] != "assistant"]
        row: dict[str, Any] = {"id": each.id, "conversations": messages}
        if each.tools:  # as text: the columns of a data set have one type
            row["tools"] = json.dumps(each.tools, ensure_ascii=False)
        rows += [row] if messages else []
    return _write_rows(rows, file)


def write_parts(data: TrainingData, folder: Path) -> None:
    """Write both parts of the data to a folder, the conversations to train with last, as rows that
    ``read_training_data`` reads as the same ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in ((HELD_OUT_FILE, data.held_out), (TRAIN_FILE, data.train)):
        rows = [{"domain": c.domain, "messages": c.messages, "tools": c.tools} for c in part]
        _write_rows(rows, folder / name)


def write_prompts(conversations: Sequence[Conversation], file: Path) -> None:
    """Write what ``peagle bench --acceptance`` sends: each conversation up to its last question, of
    each domain as many as of another, at most ``MOST_PROMPTS``, and the same ones in each run."""
    by_domain: dict[str, list[Conversation]] = {}
    for each in sorted(conversations, key=lambda each: (each.question, each.id)):
        by_domain.setdefault(each.domain, []).append(each)
    of_each = -(-MOST_PROMPTS // len(by_domain))
    chosen = [each for members in by_domain.values() for each in members[:of_each]]
    _write_rows([{"domain": each.domain, "messages": each.prompt} for each in chosen], file)


def _write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> int:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_file(file, "".join(lines).encode())
    return len(rows)
