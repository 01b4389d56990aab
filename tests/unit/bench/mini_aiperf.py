"""A program that takes aiperf's configuration, sends its requests, and writes its records.

It stands for aiperf in quick tests: it has the same arguments, inputs and outputs, and no packages.
"""

import http.client
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def main() -> int:
    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())["benchmark"]
    for name in ("AIPERF_FAILS", "HTTP_PROXY"):
        assert name not in os.environ, "the sender gets no other variables"
    lines = iter(Path(config["datasets"][0]["path"]).read_text().splitlines())
    out = Path(config["artifacts"]["dir"])
    out.mkdir(parents=True)
    tokenizer = Path(config["tokenizer"]["name"])
    assert (tokenizer / "tokenizer.json").is_file()
    if "unusable" in config["models"]:
        print("12:00:00 ERROR    Failed: the model is unusable")
        return 1
    with (out / "profile_export.jsonl").open("w") as records:
        for phase in config["phases"]:
            bodies = [next(lines) for _ in range(phase["requests"])]
            with ThreadPoolExecutor(phase["concurrency"]) as pool:
                for record in pool.map(lambda body: send(config["endpoint"], body), bodies):
                    record["metadata"]["phase_name"] = phase["name"]
                    records.write(json.dumps(record) + "\n")
                    records.flush()
    return 0


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
