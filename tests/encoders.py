"""Tiny random encoders in Hugging Face folders, with real tokenizers, for tests."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

from runtime.models.registry import Encoder, build_encoder
from snapshot.manifest import Manifest
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

TEXTS = [
    "the quick brown fox",
    "jumps over the lazy dog, and the dog does not mind at all!",
    "fox",
    "a lighthouse keeper reads the quick letters of the brown sea",
    "the lazy brown dog",
]
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}


# Vocabularies are written down, not trained: the trainers' choice differs from run to run.
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def wordpiece() -> tokenizers.Tokenizer:
    """As BERT's: lower case, [CLS] … [SEP]."""
    words = ["the", "quick", "brown", "fox", "dog", "la", "light", "house", "read", "jump"]
    endings = ["##s", "##zy", "##house", "##er", "##tters", "##ng"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"!,.0123456789", *LETTERS]
    pieces += ["##" + letter for letter in LETTERS] + words + endings
    vocab = {piece: n for n, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(8)  # as published files have it; sealing drops both
    tokenizer.enable_padding(length=8)
    return tokenizer


def byte_level() -> tokenizers.Tokenizer:
    """As RoBERTa's: <s> … </s>."""
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("o", "x"),
        ("f", "ox"),
        ("Ġ", "d"),
        ("o", "g"),
    ]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = special + alphabet + [first + second for first, second in merges]
    vocab = {piece: n for n, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    """As XLM-RoBERTa's: SentencePiece's pieces, <s> … </s>."""
    pieces = sorted({word for text in TEXTS for word in text.split()})
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [("▁" + piece, -2.0) for piece in pieces] + [("▁", -3.0)]
    vocab += [(letter, -5.0) for letter in LETTERS]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


MAKERS = {"bert": wordpiece, "roberta": byte_level, "xlm-roberta": unigram}
CONFIGS = {
    "bert": transformers.BertConfig,
    "roberta": transformers.RobertaConfig,
    "xlm-roberta": transformers.XLMRobertaConfig,
}


def write_encoder(folder: Path, family: str, *, pooling: str | None = None, **changes: Any) -> Any:
    """Save a random model with weights large enough that mistakes show; transformers' model."""
    tokenizer = MAKERS[family]()
    fields = SIZES | {"vocab_size": tokenizer.get_vocab_size()} | changes
    torch.manual_seed(2)
    model = transformers.AutoModel.from_config(CONFIGS[family](**fields)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.ndim == 2 else 0.1
            offset = 1.0 if "LayerNorm.weight" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + offset)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    if pooling is not None:
        write_pooling(folder, pooling)
    return model


def write_pooling(folder: Path, mode: str, *, normalize: bool = True) -> None:
    """The files of sentence-transformers."""
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalize
    modules = [
        {
            "idx": n,
            "name": str(n),
            "path": f"{n}_{kind}" if n else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {
        f"pooling_mode_{each}": each == mode
        for each in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    }
    config = {"word_embedding_dimension": 48, **flags}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def sealed_encoder(
    folder: Path, cache: Path, dtype: Any = "float32", *, quantization: Any = "none"
) -> tuple[Encoder, Manifest]:
    """Seal, restore, bind."""
    node_cache = NodeCache(cache)
    digest = seal(
        str(folder),
        dtype=dtype,
        quantization=quantization,
        cache=node_cache,
        progress=lambda _: None,
    )
    restored = restore(node_cache.path(digest))
    return build_encoder(restored.manifest.config, restored.tensors), restored.manifest


def token_ids(folder: Path, text: str) -> list[int]:
    """What transformers' tokenizer makes of a text, special tokens included."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids: list[int] = tokenizer(text, padding=False, truncation=False)["input_ids"]
    return ids


@torch.inference_mode()
def reference(model: Any, ids: list[int], mode: str = "mean_tokens") -> torch.Tensor:
    """sentence-transformers' vector by transformers' hidden states: pooled, of unit length."""
    hidden = model(torch.tensor([ids])).last_hidden_state[0].float()
    pooled = {"mean_tokens": hidden.mean(0), "cls_token": hidden[0], "lasttoken": hidden[-1]}[mode]
    return pooled / pooled.norm()
