"""What vLLM's parsers make of a model's output, as its server calls them. Imported by asking.py."""

import os
from typing import Any


def parsed_answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer in ``output``, parsed as a whole and in pieces of ``step`` tokens.

    ``tools`` are those of the request; the parsers are the arguments ``tool_parser`` and
    ``reasoning_parser`` of the server. ``tokenizer`` is a folder, to which the ``tokens`` are added
    that the model's own tokenizer has; without one, the output is in OpenAI's harmony format, and
    the folder ``vocabulary`` has its tokens.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    encode, decode, tokenizer = _tokenizer(question)
    request = ChatCompletionRequest(
        model="m",
        messages=[{"role": "user", "content": "What is the weather?"}],
        tools=question["tools"],
        tool_choice="auto",
    )
    tokens = encode(question["output"])
    whole = _parser(question, tokenizer, request).parse(
        decode(tokens), request, enable_auto_tools=True, model_output_token_ids=tokens
    )
    pieces = [tokens[at : at + question["step"]] for at in range(0, len(tokens), question["step"])]
    return {
        "whole": {
            "reasoning": whole[0],
            "content": whole[1],
            "calls": [[call.name, call.arguments] for call in whole[2] or []],
        },
        "streamed": _streamed(_parser(question, tokenizer, request), request, pieces, decode),
        "pieces": len(pieces),
    }


def _parser(question: dict[str, Any], tokenizer: Any, request: Any) -> Any:
    from vllm.parser import ParserManager

    parser = ParserManager.get_parser(
        tool_parser_name=question.get("tool_parser"),
        reasoning_parser_name=question.get("reasoning_parser"),
        enable_auto_tools=True,
        is_harmony=question.get("tokenizer") is None,
    )
    assert parser is not None
    return parser(tokenizer, request.tools)


def _streamed(parser: Any, request: Any, pieces: list[list[int]], decode: Any) -> dict[str, Any]:
    """The parts of all messages, joined as a client joins them."""
    texts: dict[str, Any] = {"reasoning": "", "content": ""}
    calls: dict[int, list[str]] = {}
    tokens: list[int] = []
    sent = ""
    for number, piece in enumerate(pieces):
        tokens += piece
        text = decode(tokens).rstrip("\ufffd")  # as vLLM's detokenizer, whole characters only
        delta = parser.parse_delta(
            text[len(sent) :],
            piece,
            request,
            prompt_token_ids=[],
            finished=number == len(pieces) - 1,
        )
        sent = text
        for name in texts:
            texts[name] += getattr(delta, name, None) or ""
        for call in getattr(delta, "tool_calls", None) or []:
            name, arguments = calls.setdefault(call.index, ["", ""])
            calls[call.index] = [
                name + (call.function.name or ""),
                arguments + (call.function.arguments or ""),
            ]
    joined = {name: text or None for name, text in texts.items()}
    return {**joined, "calls": [calls[index] for index in sorted(calls)]}


def _tokenizer(question: dict[str, Any]) -> tuple[Any, Any, Any]:
    """How to encode and decode, and the tokenizer that the parsers get."""
    if question.get("tokenizer") is None:
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = question["vocabulary"]
        from openai_harmony import HarmonyEncodingName, load_harmony_encoding

        harmony = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        return lambda text: harmony.encode(text, allowed_special="all"), harmony.decode, harmony
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(question["tokenizer"])
    tokenizer.add_tokens(question["tokens"])
    return (
        lambda text: tokenizer.encode(text, add_special_tokens=False),
        tokenizer.decode,
        tokenizer,
    )
