"""Rebuild a `tokenizers` tokenizer, chat template and stop tokens from GGUF metadata.

Byte-level BPE ("gpt2", with llama.cpp's name for the pre-tokenizer) and SentencePiece BPE
("llama"). Split patterns are those of llama.cpp's src/llama-vocab.cpp, written as the models' own
tokenizer.json files write them.
"""

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.checkpoint import TextFormat, generation_defaults
from snapshot.gguf_header import Value
from snapshot.gguf_metadata import Metadata
from snapshot.manifest import ChatFormat

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # llama.cpp's token types

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class _Split:
    """How a byte-level vocabulary cuts text into words before merging."""

    pattern: str | None = None  # None: GPT-2's
    digits: bool = False  # every digit on its own first
    whole_words: bool = False  # a word that is in the vocabulary is not merged up to
    nfc: bool = False
    bos: bool = False  # where the file does not say


_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _Split(digits=True),
    "qwen2": _Split(pattern=_QWEN2, nfc=True),
    "deepseek-r1-qwen": _Split(pattern=_QWEN2, nfc=True),
    "llama-bpe": _Split(pattern=_LLAMA3, whole_words=True, bos=True),
    "llama3": _Split(pattern=_LLAMA3, whole_words=True, bos=True),
    "llama-v3": _Split(pattern=_LLAMA3, whole_words=True, bos=True),
    "dbrx": _Split(pattern=_LLAMA3),  # Phi-4
    "gpt-4o": _Split(pattern=_GPT4O),  # Phi-4-mini
    "tekken": _Split(pattern=_TEKKEN, whole_words=True, bos=True),
}

# Phi-3's special tokens swallow the space after them, but for these; files do not say so, llama.cpp
# knows it.
_PHI3_NOT_STRIPPING = frozenset(("<unk>", "<s>", "<|endoftext|>"))

# Control tokens that end an answer even where the metadata name only one of them, as in llama.cpp.
_END_OF_GENERATION = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
}


def gguf_tokenizer(values: dict[str, Value], vocab_size: int, name: str) -> TextFormat:
    """Build the tokenizer of a file with these metadata.

    Raises:
        CorruptSnapshot: the vocabulary is inconsistent.
        UnsupportedModel: another kind of tokenizer or pre-tokenizer.
    """
    metadata = Metadata(values, name)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.integers("tokenizer.ggml.token_type")
    if not 0 < len(tokens) <= vocab_size or len(types) != len(tokens):
        raise CorruptSnapshot(
            f"{name}: {len(tokens)} tokens with {len(types)} types for a vocabulary of "
            f"{vocab_size}; the file is damaged, download it again"
        )
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CorruptSnapshot(
            f"{name}: a token is in the vocabulary twice; convert the model again"
        )

    kind = metadata.text("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, bos_by_default = _byte_level(metadata, vocab)
    elif kind == "llama":
        tokenizer, bos_by_default = _sentencepiece(metadata, vocab, types), True
    else:
        raise UnsupportedModel(
            f"{name}: the tokenizer {kind[:60]!r} is not supported; these are: gpt2 and llama"
        )
    strips = kind == "llama" and metadata.text("general.architecture", "") == "phi3"
    tokenizer.add_special_tokens(
        [
            AddedToken(
                token,
                normalized=False,
                special=True,
                rstrip=strips and token not in _PHI3_NOT_STRIPPING,
            )
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in (_CONTROL, _UNKNOWN)
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ == _USER_DEFINED
        ]
    )
    bos = _token_id(metadata, "bos", len(tokens))
    eos = _token_id(metadata, "eos", len(tokens))
    stops = [eos, *(_token_id(metadata, key, len(tokens)) for key in ("eot", "eom"))]
    stops += [
        vocab[token]
        for token in sorted(_END_OF_GENERATION & vocab.keys())
        if types[vocab[token]] == _CONTROL
    ]
    return TextFormat(
        tokenizer_json=tokenizer.to_str().encode(),
        add_bos=bos is not None and metadata.flag("tokenizer.ggml.add_bos_token", bos_by_default),
        bos_token_id=bos,
        generation=generation_defaults(
            name,
            {
                "eos_token_ids": tuple(dict.fromkeys(stop for stop in stops if stop is not None)),
                "temperature": values.get("general.sampling.temp"),
                "top_p": values.get("general.sampling.top_p"),
                "top_k": values.get("general.sampling.top_k") or None,
            },
        ),
        chat=ChatFormat(
            template=metadata.text("tokenizer.chat_template", "") or None,
            bos_token=None if bos is None else tokens[bos],
            eos_token=None if eos is None else tokens[eos],
        ),
    )


def _token_id(metadata: Metadata, role: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in metadata:
        return None
    token = metadata.integer(key)
    if not 0 <= token < count:
        raise CorruptSnapshot(
            f"{metadata.name}: {key} is {token}, the vocabulary has {count} tokens; the file is "
            "damaged, download it again"
        )
    return token


def _byte_level(metadata: Metadata, vocab: dict[str, int]) -> tuple[Tokenizer, bool]:
    kind = metadata.text("tokenizer.ggml.pre")
    split = _SPLITS.get(kind)
    if split is None:
        raise UnsupportedModel(
            f"{metadata.name}: the pre-tokenizer {kind[:60]!r} is not supported; these are: "
            f"{', '.join(_SPLITS)}. Seal the model from its Hugging Face folder"
        )
    merges = []
    for merge in metadata.texts("tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or not {left, right, left + right} <= vocab.keys():
            raise CorruptSnapshot(
                f"{metadata.name}: the merge {merge[:60]!r} names no tokens of the vocabulary; the "
                "file is damaged, download it again"
            )
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=split.whole_words))
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, split.bos


def _sentencepiece(metadata: Metadata, vocab: dict[str, int], types: list[int]) -> Tokenizer:
    """As Llama 2's own tokenizer.json: BPE with bytes for what is not in the vocabulary."""
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(vocab):
        raise CorruptSnapshot(
            f"{metadata.name}: {len(scores)} scores for {len(vocab)} tokens; the file is damaged"
        )
    unknown = next((token for token, i in vocab.items() if types[i] == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab,
            _merges_by_score(vocab, scores, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    space = "\u2581"
    spaced = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    replace = normalizers.Replace(" ", space)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(space), replace] if spaced else [replace]
    )
    steps = [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse()]
    if spaced:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(
    vocab: dict[str, int], scores: list[float], types: list[int]
) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best-scored token first.

    SentencePiece merges the pair whose result scores best; BPE merges the pair that comes first.
    """
    normal = {token for token, number in vocab.items() if types[number] == _NORMAL}
    merges = []
    for token in normal:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                merges.append((-scores[vocab[token]], vocab[left], vocab[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
