"""Are the saved hidden states those of the target? Run by the trainer's Python:

    python peagle_states.py TARGET HEAD URL DATA OUTPUT.json

The last hidden state of each token, through the norm and the output matrix that speculators loads
for HEAD, must give the probabilities that the server at URL reports for the rows of DATA. It does
not where a norm or a matrix is another's, or where the states are those of the token before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROWS, LONGEST = 8, 512
"""Rows that are compared, and their tokens."""


def compare(target: str, head: str, url: str, data: str) -> dict[str, Any]:
    """How many ``tokens`` were compared, the share whose most likely token is the same, and the
    mean difference of the probability of the actual token."""
    import openai
    import torch
    from datasets import load_from_disk
    from safetensors.torch import load_file
    from speculators.data_generation.vllm_client import wait_for_lock
    from speculators.models.peagle import PEagleDraftModel

    config = PEagleDraftModel.config_class.from_pretrained(head)
    config.transformer_layer_config._attn_implementation = "sdpa"
    arguments = {"config": config, "t2d": None, "d2t": None, "verifier": target}
    model = PEagleDraftModel.from_pretrained(head, **arguments).float().eval()
    client = openai.OpenAI(base_url=url, api_key="EMPTY")
    rows = load_from_disk(data)
    tokens, same, difference = 0, 0, 0.0
    for row in rows.select(range(min(ROWS, len(rows)))):
        ids = [int(token) for token in row["input_ids"]][:LONGEST]
        reply = client.completions.create(
            model=target, prompt=ids, max_tokens=1, extra_body={"prompt_logprobs": 0}
        ).model_dump()
        path = reply["kv_transfer_params"]["hidden_states_path"]
        wait_for_lock(f"{path}.lock")
        states = load_file(path)["hidden_states"][:, -1].float()
        Path(path).unlink()
        with torch.no_grad():
            logits = model.verifier_lm_head(model.verifier_norm(states))
        ours, best = logits.log_softmax(-1).exp(), logits.argmax(-1)
        for at, reported in enumerate(reply["choices"][0]["prompt_logprobs"]):
            if not reported:  # the first token has none
                continue
            theirs = reported[str(ids[at])]
            expected = torch.tensor(theirs["logprob"]).exp().item()
            difference += abs(ours[at - 1, ids[at]].item() - expected)
            same += (best[at - 1].item() == ids[at]) == (theirs["rank"] == 1)
            tokens += 1
    return {"tokens": tokens, "same": same / tokens, "difference": difference / tokens}


if __name__ == "__main__":
    Path(sys.argv[5]).write_text(json.dumps(compare(*sys.argv[1:5])), encoding="utf-8")
