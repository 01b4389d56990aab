"""A program that takes aiperf's configuration, sends its requests, and writes its records.

It stands for aiperf in quick tests: it has the same arguments, inputs and outputs, and no packages.
"""

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, cycle, groupby, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def main() -> int:
    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())["benchmark"]
    for name in ("AIPERF_FAILS", "HTTP_PROXY"):
        assert name not in os.environ, "the sender gets no other variables"
    sessions = read_sessions(config["datasets"][0])
    out = Path(config["artifacts"]["dir"])
    out.mkdir(parents=True)
    tokenizer = Path(config["tokenizer"]["name"])
    assert (tokenizer / "tokenizer.json").is_file()
    if "unusable" in config["models"]:
        print("12:00:00 ERROR    Failed: the model is unusable")
        return 1
    with (out / "profile_export.jsonl").open("w") as records:
        for phase in config["phases"]:
            count = phase.get("sessions") or phase["requests"]
            conversations = [next(sessions) for _ in range(count)]
            next(sessions, None)  # as aiperf does where a phase ends
            with ThreadPoolExecutor(phase["concurrency"]) as pool:
                sent = pool.map(lambda turns: converse(config["endpoint"], turns), conversations)
                for record in chain.from_iterable(sent):
                    record["metadata"]["phase_name"] = phase["name"]
                    records.write(json.dumps(record) + "\n")
                    records.flush()
    return 0


def read_sessions(dataset: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The turns of each conversation, then all of them again; a single prompt is one."""
    lines = [json.loads(line) for line in Path(dataset["path"]).read_text().splitlines()]
    if dataset["format"] == "raw_payload":
        return cycle([{"payload": line}] for line in lines)
    groups = groupby(lines, key=lambda line: line["session_id"])
    return cycle([list(turns) for _, turns in groups])


def converse(endpoint: dict[str, Any], turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of a conversation."""
    records = []
    for number, turn in enumerate(turns):
        time.sleep(turn.get("delay", 0) / 1e3)
        records.append(send(endpoint, json.dumps(turn["payload"])))
        records[-1]["metadata"]["turn_index"] = number
    return records


def send(endpoint: dict[str, Any], body: str) -> dict[str, Any]:
    """aiperf's record of one request."""
    parts = urlsplit(endpoint["urls"][0])
    route = "chat/completions" if endpoint["type"] == "chat" else "completions"
    key = endpoint.get("api_key", "")
    assert not key or key == "${PEAGLE_BENCH_KEY}", "the key itself is not in a file"
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {os.environ['PEAGLE_BENCH_KEY']}"} if key else {}
    metadata: dict[str, Any] = {"request_start_ns": time.time_ns()}
    times = [time.time()]
    usage: dict[str, int] = {}
    metrics: dict[str, Any] = {}
    error = None
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    try:
        connection.request("POST", f"{parts.path}/v1/{route}", body, headers)
        with connection.getresponse() as reply:
            if reply.status != 200:
                message = reply.read().decode()
                error = {"code": reply.status, "type": "Error", "message": message}
            for line in reply:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    usage = event.get("usage") or usage
                    times += [time.time()] if event["choices"] else []
            if not usage and not error and len(times) > 1:
                error = {"type": "ClientPayloadError", "message": "not all data"}
    except ConnectionRefusedError as refused:
        error = {"type": "ClientConnectorError", "message": repr(refused)}
    except (OSError, http.client.HTTPException) as broken:
        error = {"type": "ClientPayloadError", "message": repr(broken)}
    finally:
        connection.close()
    metadata["request_end_ns"] = time.time_ns()
    if error:
        return {"metadata": metadata, "metrics": {}, "error": error}
    gaps = [1e3 * (later - earlier) for earlier, later in pairwise(times[1:])]
    if len(times) > 1:
        metrics["time_to_first_token"] = {"value": 1e3 * (times[1] - times[0]), "unit": "ms"}
    if gaps:
        metrics["inter_chunk_latency"] = {"value": gaps, "unit": "ms"}
    for name, count in usage.items():
        metrics[f"usage_{name}"] = {"value": count, "unit": "tokens"}
    return {"metadata": metadata, "metrics": metrics}


if __name__ == "__main__":
    sys.exit(main())
