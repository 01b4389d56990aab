"""vLLM's connector that saves hidden states, for a CPU, which has no streams, events and pinned
memory: the states of a request are copied and written at once."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as vllms


class _Done:
    """In place of a CUDA event: the copy is complete when it is asked."""

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class CpuHiddenStatesConnector(vllms.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """The connector of vLLM 0.28, whose copy needs CUDA."""

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        size = self._block_size
        blocks = torch.tensor(pending.block_ids, dtype=torch.long).reshape(-1, 1)
        slots = (torch.arange(size).reshape(1, -1) + blocks * size).flatten()
        count = pending.token_ids.shape[0]
        states = vllms.extract_from_kv_cache(self._kv_cache, slots, count).clone()
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)
        tensors = {"hidden_states": states, "token_ids": pending.token_ids.clone()}
        self._write_tensors(
            tensors, _Done(), pending.filename, self._lock_fds.pop(pending.req_id, None)
        )
        self._req_copy_events[pending.req_id] = _Done()
