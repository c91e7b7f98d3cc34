"""How long a sequence may be, and what sets that limit."""

from typing import NamedTuple


class ContextLimit(NamedTuple):
    """`note` is for those whose prompt is over `tokens`; empty where the model itself sets it."""

    tokens: int
    note: str = ""


def context_limit(*, model: int, asked: int | None, held: int) -> ContextLimit:
    """Tokens of a sequence: what the model takes, the function asks for and the KV cache holds."""
    tokens = min(model, asked or model, held)
    if tokens == model:
        return ContextLimit(tokens)
    setting = "kv_cache_bytes" if tokens < (asked or model) else "max_context"
    return ContextLimit(
        tokens,
        f" This is set by the function's {setting}, for the model itself takes {model} tokens; "
        "raise it for longer ones.",
    )
