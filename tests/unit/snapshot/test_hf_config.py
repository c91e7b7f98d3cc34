"""config.json as transformers reads it: the same fields, and the same rotary frequencies."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from runtime.models.rope import cos_sin_table
from snapshot.hf_config import hf_config
from snapshot.hf_families import FAMILIES as ALL_FAMILIES
from snapshot.model_config import ModelConfig

PATH = Path("model/config.json")
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


def both(family: str, **fields: Any) -> tuple[ModelConfig, Any]:
    """The same JSON text through ours and through transformers' class."""
    text = json.dumps({"model_type": family, **SIZES, **fields})
    theirs = AutoConfig.for_model(**json.loads(text))
    return hf_config(json.loads(text), PATH), theirs


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": None},
        {"head_dim": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"num_attention_heads": 32, "hidden_size": 1024},
        {"sliding_window": None},
        {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 2},
        {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 0},
        {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 4},
        {"sliding_window": 128, "use_sliding_window": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_fields(family: str, fields: dict[str, Any]) -> None:
    if family in ("mistral", "qwen2", "qwen3"):
        kv_heads = 8 if family == "mistral" else 32
        fields = {"num_attention_heads": kv_heads, **fields}  # their default kv heads must fit
    if family == "mistral" and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = fields["num_key_value_heads"] or 2  # null is an error there
    ours, theirs = both(family, **fields)
    assert ours.family == family
    assert ours.vocab_size == theirs.vocab_size
    assert ours.hidden_size == theirs.hidden_size
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.num_heads == theirs.num_attention_heads
    assert ours.num_kv_heads == theirs.num_key_value_heads
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == head_dim
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_positions == theirs.max_position_embeddings
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.qk_norm == (family == "qwen3")
    bias = family in ("llama", "qwen3") and theirs.attention_bias
    assert ours.qkv_bias == (family == "qwen2" or bias)
    assert ours.o_bias == bias
    assert ours.mlp_bias == (family == "llama" and theirs.mlp_bias)
    window = getattr(theirs, "sliding_window", None)
    kinds = ["full_attention"] * 4 if family == "llama" else ["sliding_attention"] * 4
    kinds = getattr(theirs, "layer_types", None) or kinds
    expected = [window if kind == "sliding_attention" else None for kind in kinds]
    layers = ours.sliding_layers or (True,) * ours.num_layers
    assert [ours.sliding_window if sliding else None for sliding in layers] == expected


def test_explicit_layer_types() -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    fields = {"layer_types": kinds, "sliding_window": 8, "num_key_value_heads": 4}
    ours, theirs = both("qwen3", use_sliding_window=True, **fields)
    assert theirs.layer_types == kinds
    assert (ours.sliding_window, ours.sliding_layers) == (8, (False, True, False, True))
    with pytest.raises(UnsupportedModel, match="layer_types"):
        hf_config({"model_type": "qwen3", **SIZES, **fields, "layer_types": ["linear"]}, PATH)
    with pytest.raises(UnsupportedModel, match="full_attention"):
        hf_config({"model_type": "mistral", **SIZES, **fields}, PATH)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: list[dict[str, Any]] = [
    {},
    {"rope_theta": 500000.0},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 2e6},
    {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 20000.0},
    {"rope_scaling": {"rope_type": "linear", "factor": 4}},
    {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 4}},
    {"rope_scaling": None, "rope_theta": 30000.0},
    {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7000.0}},
    {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 64}},
    {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "max_position_embeddings": 512},
    {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        "original_max_position_embeddings": 128,
    },
    {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    {
        "rope_scaling": {
            "type": "yarn",
            "factor": None,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "beta_slow": 2,
            "truncate": False,
        },
        "max_position_embeddings": 1024,
    },
    {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 9000.0},
    },
    {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        "original_max_position_embeddings": 32,
    },
    {"rope_scaling": {"type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7}},
    {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 0.5, "beta_fast": 0}},
]


@pytest.mark.parametrize("fields", ROPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_rope_gives_transformers_frequencies(family: str, fields: dict[str, Any]) -> None:
    fields = {"num_key_value_heads": 4, **fields}
    ours, theirs = both(family, **fields)
    theirs.standardize_rope_params()
    parameters = theirs.rope_parameters
    assert ours.rope_theta == parameters["rope_theta"]
    scaling = ours.rope_scaling
    assert scaling.kind == parameters["rope_type"]
    if scaling.kind == "default":
        return
    # Written back as new-style parameters, ours must give the frequencies of the original file.
    again = {
        "rope_type": scaling.kind,
        "rope_theta": ours.rope_theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "attention_factor": scaling.attention_factor,
        "mscale": scaling.mscale,
        "mscale_all_dim": scaling.mscale_all_dim,
        "truncate": scaling.truncate,
        "original_max_position_embeddings": scaling.original_max_positions,
    }
    rebuilt = AutoConfig.for_model(
        family, **SIZES, num_key_value_heads=4, head_dim=ours.head_dim, rope_parameters=again
    )
    init = ROPE_INIT_FUNCTIONS[scaling.kind]
    theirs.head_dim = ours.head_dim  # qwen2 has none, which some kinds cannot stand
    for value, expected in zip(init(rebuilt, "cpu"), init(theirs, "cpu"), strict=True):
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, UnsupportedModel, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, CorruptSnapshot, "short_factor is missing"),
        ({"rope_scaling": {"rope_type": []}}, UnsupportedModel, r"'\[\]'"),
        ({"rope_scaling": "linear"}, CorruptSnapshot, "not an object"),
        ({"rope_scaling": {"type": "linear"}}, CorruptSnapshot, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, CorruptSnapshot, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": math.nan}}, CorruptSnapshot, "factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, CorruptSnapshot, "low_freq_factor"),
        (
            {"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
            CorruptSnapshot,
            "low_freq_factor is not below",
        ),
        (
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 0}},
            CorruptSnapshot,
            "original_max_position_embeddings is wrong",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            UnsupportedModel,
            "per layer type",
        ),
        ({"partial_rotary_factor": 0.5}, UnsupportedModel, "partial_rotary_factor"),
        ({"rope_theta": "big"}, CorruptSnapshot, "rope_theta"),
        ({"head_dim": 7}, CorruptSnapshot, "head_dim"),
    ],
)
def test_wrong_rope(fields: dict[str, Any], error: type[SnapshotError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        hf_config({"model_type": "llama", **SIZES, **fields}, PATH)
    assert str(caught.value).startswith(str(PATH))


def test_gemma2_fields() -> None:
    ours, theirs = both("gemma2")
    assert ours.architecture == "gemma"
    assert ours.num_kv_heads == theirs.num_key_value_heads == 4
    assert ours.head_dim == theirs.head_dim == 256
    assert ours.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert (ours.attention_cap, ours.logit_cap) == (50.0, 30.0)
    assert ours.tie_embeddings
    assert sliding_layers(ours) == kinds_of(theirs)
    ours, theirs = both("gemma2", attn_logit_softcapping=None, layer_types=["full_attention"] * 4)
    assert (ours.attention_cap, ours.sliding_window) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_hidden_layers": 13},
        {"num_hidden_layers": 8, "sliding_window_pattern": 3},
        {"num_hidden_layers": 8, "_sliding_window_pattern": 6},
        {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 2e6},
        {"rope_local_base_freq": 20000.0, "rope_scaling": None},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            }
        },
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"query_pre_attn_scalar": 168, "final_logit_softcapping": 20.0},
    ],
    ids=str,
)
def test_gemma3_fields(fields: dict[str, Any]) -> None:
    ours, theirs = both("gemma3_text", **fields)
    full, sliding = (theirs.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    assert ours.rope_theta == full["rope_theta"]
    assert ours.rope_scaling.kind == full["rope_type"]
    assert ours.rope_scaling.factor == full.get("factor", 1.0)
    assert ours.sliding_rope_theta == sliding["rope_theta"]
    assert ours.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert ours.logit_cap == theirs.final_logit_softcapping
    assert ours.attention_cap is None  # transformers reads the field but uses it nowhere
    assert ours.qk_norm
    assert sliding_layers(ours) == kinds_of(theirs)


def test_the_nested_config_of_gemma3_says_little() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    fields = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    ours = hf_config(fields, PATH)
    theirs = AutoConfig.for_model("gemma3", text_config=text).text_config
    assert ours.family == "gemma3_text"
    assert ours.vocab_size == theirs.vocab_size
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim) == (8, 4, 256)
    assert ours.max_positions == theirs.max_position_embeddings
    assert sliding_layers(ours) == kinds_of(theirs)


LONGROPE = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sliding_window": 2047},
        {"rope_scaling": LONGROPE, "max_position_embeddings": 131072},
        {"rope_scaling": {**LONGROPE, "attention_factor": 1.5}},
        {"rope_scaling": {**LONGROPE, "type": "yarn"}, "original_max_position_embeddings": 2048},
        {"partial_rotary_factor": 0.5},
        {
            "partial_rotary_factor": 0.75,
            "rope_scaling": {
                **LONGROPE,
                "short_factor": [1.0] * 24,
                "long_factor": [3.0] * 24,
            },
            "max_position_embeddings": 131072,
        },
    ],
    ids=str,
)
def test_phi3_fields(fields: dict[str, Any]) -> None:
    ours, theirs = both("phi3", **fields)
    assert ours.architecture == "llama"
    assert ours.sliding_window == theirs.sliding_window
    parameters = theirs.rope_parameters
    assert ours.rope_theta == parameters["rope_theta"]
    assert ours.rope_scaling.kind == parameters["rope_type"]
    rotary = int(64 * parameters["partial_rotary_factor"])
    assert (ours.rotary_dim or ours.head_dim) == rotary
    if ours.rope_scaling.kind == "default":
        return
    for positions in (1000, 5000):  # below and above either original context
        scaled, factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, "cpu", seq_len=positions)
        table = cos_sin_table(ours, positions)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), scaled)
        assert torch.allclose(table[:, 0], angles.cos() * factor, atol=1e-6)
        assert torch.allclose(table[:, 1], angles.sin() * factor, atol=1e-6)


def test_su_is_longrope() -> None:  # transformers maps it too, but refuses it before that
    scalings = [{**LONGROPE, "type": kind} for kind in ("su", "longrope")]
    fields = {"model_type": "phi3", **SIZES, "max_position_embeddings": 131072}
    old, new = (hf_config({**fields, "rope_scaling": scaling}, PATH) for scaling in scalings)
    assert old == new
    assert (old.rope_scaling.kind, old.rope_scaling.factor) == ("longrope", 32.0)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("mixtral", {}),
        ("mixtral", {"num_local_experts": 16, "num_experts_per_tok": 4, "sliding_window": 128}),
        ("qwen2_moe", {}),
        ("qwen2_moe", {"decoder_sparse_step": 2, "norm_topk_prob": True}),
        ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 3, "qkv_bias": False}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"num_experts": 8, "mlp_only_layers": [0, 3], "head_dim": 128}),
        ("qwen3_moe", {"num_local_experts": 8, "attention_bias": True}),
    ],
    ids=str,
)
def test_fields_of_mixtures(family: str, fields: dict[str, Any]) -> None:
    fields = {"num_key_value_heads": 4, **fields}
    ours, theirs = both(family, **fields)
    assert ours.architecture == "mixture"
    assert ours.experts is not None
    if family == "mixtral":
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"] == 1e6
        assert ours.experts.intermediate_size == theirs.intermediate_size
        assert ours.experts.normalize
        layers = [True] * 4
    else:
        assert ours.experts.intermediate_size == theirs.moe_intermediate_size
        assert ours.experts.normalize == theirs.norm_topk_prob
        step = theirs.decoder_sparse_step
        layers = [(n + 1) % step == 0 and n not in theirs.mlp_only_layers for n in range(4)]
    assert ours.experts.count == theirs.num_experts
    assert ours.experts.per_token == theirs.num_experts_per_tok
    shared = getattr(theirs, "shared_expert_intermediate_size", None)
    assert ours.experts.shared_intermediate_size == shared
    assert [ours.has_experts(n) for n in range(4)] == layers
    if family == "qwen2_moe":
        assert sliding_layers(ours) == kinds_of(theirs)
        assert ours.qkv_bias == theirs.qkv_bias
    else:
        assert ours.sliding_window == theirs.sliding_window


def test_a_mixture_without_experts_is_a_dense_model() -> None:
    ours, _ = both("qwen3_moe", mlp_only_layers=[0, 1, 2, 3])
    assert (ours.architecture, ours.experts) == ("llama", None)


def sliding_layers(config: ModelConfig) -> list[bool]:
    return [config.is_sliding(n) for n in range(config.num_layers)]


def kinds_of(theirs: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in theirs.layer_types]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model_type": "gemma3"}, CorruptSnapshot, "without text_config"),
        (
            {"model_type": "gemma3_text", "use_bidirectional_attention": True},
            UnsupportedModel,
            "use_bidirectional_attention",
        ),
        (
            {"model_type": "gemma2", "hidden_activation": "relu"},
            UnsupportedModel,
            "hidden_activation 'relu'",
        ),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, CorruptSnapshot, "query_pre"),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
            },
            UnsupportedModel,
            "sliding_attention",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {**LONGROPE, "short_factor": [1.0]}},
            CorruptSnapshot,
            "1 longrope factors for 32 frequencies",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {**LONGROPE, "short_factor": [0.0] * 32}},
            CorruptSnapshot,
            "short_factors",
        ),
        ({"model_type": "phi3", "partial_rotary_factor": "x"}, CorruptSnapshot, "partial_rotary"),
        ({"model_type": "phi3", "partial_rotary_factor": 2}, CorruptSnapshot, "rotary_dim 128"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, CorruptSnapshot, "9 experts per"),
        ({"model_type": "mixtral", "num_local_experts": 0}, CorruptSnapshot, "experts.count"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": "0"}, CorruptSnapshot, "mlp_only_layers"),
        (
            {"model_type": "phimoe"},
            UnsupportedModel,
            "'phimoe' is not supported; these are: llama, mistral, qwen2, qwen3, phi3, gemma2",
        ),
    ],
    ids=str,
)
def test_wrong_fields(fields: dict[str, Any], error: type[SnapshotError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        hf_config({**SIZES, "num_key_value_heads": 4, **fields}, PATH)
    assert str(caught.value).startswith(str(PATH))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
KEYS = [
    *SIZES,
    *("model_type", "head_dim", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "hidden_act"),
    *("original_max_position_embeddings", "sliding_window", "use_sliding_window", "layer_types"),
    *("max_window_layers", "tie_word_embeddings", "attention_bias", "quantization_config"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    *("sliding_window_pattern", "rope_local_base_freq", "use_bidirectional_attention"),
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "text_config"),
    *("shared_expert_intermediate_size", "hidden_activation"),
]
ROPE_KEYS = [
    "short_factor",
    "long_factor",
    "full_attention",
    "rope_type",
    "type",
    "factor",
    "rope_theta",
    "original_max_position_embeddings",
]


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(
    st.sampled_from([*ALL_FAMILIES, "gemma3"]),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
    st.dictionaries(
        st.sampled_from(ROPE_KEYS), st.sampled_from(["yarn", "llama3", "longrope", 1, 2.0]) | JSON
    ),
)
def test_any_json_is_a_config_or_our_error(
    family: str, fields: dict[str, Any], rope: dict[str, Any]
) -> None:
    try:
        hf_config({"model_type": family, **SIZES, "rope_scaling": rope, **fields}, PATH)
    except SnapshotError as error:
        assert str(PATH) in str(error)
