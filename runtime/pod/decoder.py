"""A restored decoder's models: the one that answers and, if there is one, the one that guesses."""

import torch

from glowplug.contracts import Assignment
from runtime.engine.kv_cache import bytes_per_block
from runtime.models.registry import Model, build_model
from snapshot.model_config import ModelConfig
from snapshot.restore import Restored


def bind_decoder(
    restored: Restored, config: ModelConfig, assignment: Assignment
) -> tuple[Model, Model | None]:
    """Model and draft model; without speculation the latter stays on disk.

    Their position tables are as long as the context for which the KV memory has room: for the keys
    and values of both.

    Raises:
        UnsupportedModel: an architecture that this version does not run.
    """
    draft = restored.manifest.draft if assignment.speculation == "auto" else None
    dtype: torch.dtype = getattr(torch, restored.manifest.dtype)  # they have torch's names
    held = assignment.kv_cache_bytes // sum(
        bytes_per_block(each, block_size=1, dtype=dtype)
        for each in ([config, draft.config] if draft else [config])
    )
    limit = min(assignment.max_context or held, held)
    model = build_model(config, restored.tensors, max_context=limit)
    if draft is None or restored.draft is None:
        return model, None
    # Beyond its own limit a draft model guesses worse; it must not be refused there.
    stretched = draft.config.model_copy(update={"max_positions": config.max_positions})
    return model, build_model(stretched, restored.draft, max_context=limit)
