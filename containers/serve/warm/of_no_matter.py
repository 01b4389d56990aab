"""Variables that change nothing of what an engine compiles, and so belong to no artefact's key.

What is not listed counts: an engine that compiles once more is better than one that runs code made
for another. So arguments that load code of the user's own count (``--tool-parser-plugin``), and
those that vLLM makes a part of its own caches' keys, such as ``--generation-config``.
"""

from __future__ import annotations

from serve.environment import PREFIX
from serve.names import NEGATION
from serve.redaction import is_secret
from serve.warm.caches import FOLDERS

_WHERE_IT_LISTENS = (
    "HOST",
    "PORT",
    "UDS",
    "ROOT_PATH",
    "ENABLE_SSL_REFRESH",
)
_WHO_MAY_ASK = (
    "ALLOWED_ORIGINS",
    "ALLOWED_METHODS",
    "ALLOWED_HEADERS",
    "ALLOW_CREDENTIALS",
    "MIDDLEWARE",
)
_HOW_IT_ANSWERS = (
    "SERVED_MODEL_NAME",
    "RESPONSE_ROLE",
    "RETURN_TOKENS_AS_TOKEN_IDS",
    "ENABLE_PROMPT_TOKENS_DETAILS",
    "ENABLE_FORCE_INCLUDE_USAGE",
    "ENABLE_PER_REQUEST_METRICS",
    "ENABLE_SERVER_LOAD_TRACKING",
    "ENABLE_TOKENIZER_INFO_ENDPOINT",
    "ENABLE_REQUEST_ID_HEADERS",
    "DISABLE_FASTAPI_DOCS",
    "ENABLE_OFFLINE_DOCS",
    "FINGERPRINT_MODE",
    "FINGERPRINT_VALUE",
)
_HOW_CHATS_ARE_READ = (
    "CHAT_TEMPLATE",
    "CHAT_TEMPLATE_CONTENT_FORMAT",
    "TRUST_REQUEST_CHAT_TEMPLATE",
    "DEFAULT_CHAT_TEMPLATE_KWARGS",
    "ENABLE_AUTO_TOOL_CHOICE",
    "EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE",
    "TOOL_CALL_PARSER",
    "TOOL_SERVER",
    "REASONING_PARSER",
)
_WHAT_IT_LOGS = (
    "ENABLE_LOG_REQUESTS",
    "ENABLE_LOG_OUTPUTS",
    "ENABLE_LOG_DELTAS",
    "ENABLE_LOGGING_ITERATION_DETAILS",
    "AGGREGATE_ENGINE_LOGGING",
    "DISABLE_LOG_STATS",
    "DISABLE_LOG_REQUESTS",
    "DISABLE_ACCESS_LOG_FOR_ENDPOINTS",
    "DISABLE_UVICORN_ACCESS_LOG",
    "UVICORN_LOG_LEVEL",
    "LOG_CONFIG_FILE",
    "LOG_ERROR_STACK",
    "MAX_LOG_LEN",
    "SHOW_HIDDEN_METRICS_FOR_VERSION",
    "OTLP_TRACES_ENDPOINT",
    "COLLECT_DETAILED_TRACES",
    "KV_CACHE_METRICS",
    "KV_CACHE_METRICS_SAMPLE",
)
_ARGUMENTS = frozenset(
    PREFIX + name
    for group in (
        _WHERE_IT_LISTENS,
        _WHO_MAY_ASK,
        _HOW_IT_ANSWERS,
        _HOW_CHATS_ARE_READ,
        _WHAT_IT_LOGS,
    )
    for name in group
)

_VLLMS_OWN = frozenset(
    [
        "VLLM_HOST_IP",
        "VLLM_PORT",
        "VLLM_RPC_BASE_PATH",
        "VLLM_CACHE_ROOT",
        "VLLM_CONFIG_ROOT",
        "VLLM_ASSETS_CACHE",
        "VLLM_ASSETS_CACHE_MODEL_CLEAN",
        "VLLM_DEBUG_DUMP_PATH",
        "VLLM_DEBUG_LOG_API_SERVER_RESPONSE",
        "VLLM_LOG_STATS_INTERVAL",
        "VLLM_RINGBUFFER_WARNING_INTERVAL",
        "VLLM_DO_NOT_TRACK",
        "VLLM_NO_USAGE_STATS",
        "VLLM_USAGE_STATS_SERVER",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_SKIP_MODEL_NAME_VALIDATION",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
        "VLLM_ENGINE_ITERATION_TIMEOUT_S",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
        "VLLM_IMAGE_FETCH_TIMEOUT",
        "VLLM_VIDEO_FETCH_TIMEOUT",
        "VLLM_AUDIO_FETCH_TIMEOUT",
        "VLLM_CPU_KVCACHE_SPACE",
    ]
)
"""vLLM itself leaves these out of the keys of its caches (its ``envs.compile_factors``). Not all
that it leaves out are here: some of them choose a kernel, or a model."""

_COMPILERS = ("TORCHINDUCTOR_", "TRITON_", "TORCH_", "PYTORCH_", "NVCC_")
"""Beginnings of what the compilers below vLLM listen to; all of it counts."""

_BEGINNINGS = (f"{PREFIX}SSL_", "VLLM_LOGGING_", "VLLM_MEDIA_")


def matters(name: str) -> bool:
    """Whether the variable is the engine's and may change what it compiles."""
    if not name.startswith((PREFIX, "VLLM_", *_COMPILERS)) or is_secret(name) or name in FOLDERS:
        return False
    plain = name.replace(NEGATION, PREFIX, 1)
    return plain not in _ARGUMENTS | _VLLMS_OWN and not plain.startswith(_BEGINNINGS)
