"""The settings of `glowplug_function`: each field of FunctionSpec, by block.

Scheduled prewarms are not among them: those are resources of their own (`glowplug_prewarm`), and
the server keeps them when a function is deployed without mention of any.
"""

from functools import partial

from glowplug.spec import FunctionSpec
from terraform.provider.settings import BYTES, SECONDS, TEXT, TEXTS, WHOLE, setting

_set = partial(setting, FunctionSpec)

SETTINGS = [
    _set("name", TEXT, replaces=True),
    _set(
        "adapters",
        TEXTS,
        description="LoRA adapters by name: folders that PEFT saved; requests name one as "
        "`function:adapter`",
    ),
    _set("model.source", TEXT, field="model"),
    _set("model.digest", TEXT),
    _set("model.dtype", TEXT),
    _set("model.quantization", TEXT),
    _set("model.draft", TEXT, field="draft_model"),
    _set("model.pooling", TEXT, description="which tokens make an embedding"),
    _set("model.max_context", WHOLE, description="tokens of one sequence at most"),
    _set("accelerator.type", TEXT, field="accelerator"),
    _set("engine.max_seqs", WHOLE),
    _set("engine.kv_cache_bytes", BYTES),
    _set(
        "engine.prefix_snapshot_bytes",
        BYTES,
        description="how much KV of hot prompt prefixes is kept for the next start",
    ),
    _set("engine.adapter_cache_bytes", BYTES),
    _set("engine.speculation", TEXT),
    _set("scaling.min_replicas", WHOLE, description="replicas that are always there"),
    _set("scaling.max_replicas", WHOLE, description="replicas at most"),
    _set("scaling.activation_replicas", WHOLE),
    _set("scaling.priority", WHOLE),
    _set(
        "keep_alive.idle",
        SECONDS,
        field="idle_s",
        description="idle time until scale to zero",
    ),
    _set("keep_alive.sleep", SECONDS, field="sleep_s"),
    _set(
        "keep_alive.cold_start_cost",
        SECONDS,
        field="cold_start_cost_s",
        description="replica time that avoiding a cold start is worth, where `idle` is learned",
    ),
    _set("predictive.mode", TEXT, field="predictive"),
    _set("predictive.timezone", TEXT),
    _set("timeouts.start", SECONDS, field="start_timeout_s"),
    _set("timeouts.request", SECONDS, field="request_timeout_s"),
    _set(
        "queue.max_requests",
        WHOLE,
        field="queue.max_requests",
        description="requests that wait at most while no replica has room",
    ),
    _set(
        "queue.max_bytes",
        BYTES,
        field="queue.max_bytes",
        description="memory that waiting requests take at most",
    ),
]

BLOCKS = {
    "model": "What is served. A change is a new revision of the function, in place: the one before "
    "answers until the new one is ready.",
    "accelerator": "Where it runs.",
    "engine": "How a replica computes.",
    "scaling": "Between which bounds Glowplug chooses the number of replicas. How many there are "
    "now is never in the state.",
    "keep_alive": "How long an idle replica stays.",
    "predictive": "Starting replicas ahead of what is foretold.",
    "timeouts": "How long a request may take.",
    "queue": "What is held while no replica has room.",
}

# What nothing can be said against, for fields that are not known at plan time.
STAND_INS = {"name": "unknown", "model": "/unknown", "max_replicas": 1000}
