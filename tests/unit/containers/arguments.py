"""A text that defines arguments as vLLM's source does."""

from peagle_serve.environment import KNOWN, make_flag

SOURCE = (
    "\n".join(f'parser.add_argument("{make_flag(name)}")' for name in KNOWN)
    + """
parser.add_argument(
    "--headless",
    action="store_true",
)
class ServerArguments:
    root_path: str | None = None
    block_size: int | None = None
    enable_auto_tool_choice: bool = False
    async_scheduling: bool | None = None
    tool_call_parser: str | None = None
    pipeline_parallel_size: int = 1
    disable_hybrid_kv_cache_manager: bool | None = None
    enable_lora: bool = False
    enable_prefix_caching: bool | None = None
    watermark_config: dict | None = None
    hf_token: bool | str | None = None
"""
)
