"""The tokenizer, chat template and stop tokens of a Hugging Face folder.

The sealed tokenizer.json is the folder's own, made canonical: no truncation, no padding, and no
post-processor. Whether that put a BOS before a plain prompt is the manifest's `add_bos` instead, so
encoding with or without special tokens gives the same, and nothing can add a BOS twice. What it put
before and after a text, an encoder's CLS and SEP say, is kept for embeddings. As in
transformers 5, `add_bos_token` of tokenizer_config.json does not count beside a tokenizer.json.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.checkpoint import TextFormat, generation_defaults
from snapshot.json_file import read_json_object, read_limited
from snapshot.manifest import MAX_SPECIAL_TOKENS, ChatFormat, GenerationDefaults

_MAX_TOKENIZER_BYTES = 256 << 20
_MAX_JSON_BYTES = 16 << 20
_MAX_TEMPLATE_BYTES = 1 << 20


def hf_tokenizer(
    folder: Path, config: dict[str, Any], vocab_size: int, *, encodes: bool = False
) -> TextFormat:
    """Read a folder's tokenizer files; `config` is the content of its config.json. With `encodes`
    they are an encoder's, whose prompts have no BOS.

    Raises:
        CorruptSnapshot: a file is missing, damaged, or of another model.
        UnsupportedModel: the folder has no tokenizer.json, or special tokens are added in an
            unknown way.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{folder}: no tokenizer.json; make it with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    settings = _optional_json(folder / "tokenizer_config.json")
    content = read_json_object(path, max_bytes=_MAX_TOKENIZER_BYTES)
    _drop_tokens_beyond(content, vocab_size, path)
    content |= {"truncation": None, "padding": None}
    before, after = _added_tokens(_load(content, path), path)
    if len(before) > 1 and not encodes:
        raise UnsupportedModel(f"{path}: it adds more than one token before a text; not supported")
    prefix = before[0] if before and not encodes else None
    content["post_processor"] = None
    tokenizer = _load(content, path)

    bos_token, eos_token = _token(settings, "bos_token"), _token(settings, "eos_token")
    bos = prefix if prefix is not None else _id(tokenizer, bos_token)
    return TextFormat(
        tokenizer_json=json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(),
        add_bos=prefix is not None,
        bos_token_id=bos,
        generation=_generation(folder, config, _id(tokenizer, eos_token), vocab_size),
        chat=ChatFormat(
            template=_chat_template(folder, settings), bos_token=bos_token, eos_token=eos_token
        ),
        special_tokens=(before, after),
    )


def _load(content: dict[str, Any], path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing narrower
        raise CorruptSnapshot(
            f"{path}: not a tokenizer ({str(error)[:120]}); the file is damaged, download it again"
        ) from None


def _drop_tokens_beyond(content: dict[str, Any], vocab_size: int, path: Path) -> None:
    """Forget added tokens (a [PAD], say) that the embedding has no row for; refuse others."""
    try:
        added = content.get("added_tokens") or []
        content["added_tokens"] = [token for token in added if token["id"] < vocab_size]
        vocab = content["model"]["vocab"]
        ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        largest = int(max(ids, default=-1))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CorruptSnapshot(
            f"{path}: not a tokenizer; the file is damaged or mislabelled"
        ) from None
    if not 0 <= largest < vocab_size:
        raise CorruptSnapshot(
            f"{path}: has a token {largest}, the model's vocabulary has {vocab_size}; it is empty "
            "or of another model"
        )


def _added_tokens(tokenizer: Tokenizer, path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the tokenizer puts before and after a text by itself."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        end = start + len(plain)
        if full[start:end] == plain:
            before, after = tuple(full[:start]), tuple(full[end:])
            if max(len(before), len(after)) > MAX_SPECIAL_TOKENS:
                break
            return before, after
    raise UnsupportedModel(f"{path}: it adds special tokens to a text in an unknown way")


def _token(settings: dict[str, Any], role: str) -> str | None:
    """A special token's text; written as a string or as an AddedToken object."""
    value = settings.get(role)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _id(tokenizer: Tokenizer, token: str | None) -> int | None:
    return None if token is None else tokenizer.token_to_id(token)


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: text, or a list that names a default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return read_limited(path, max_bytes=_MAX_TEMPLATE_BYTES).decode()
        except UnicodeDecodeError:
            raise CorruptSnapshot(f"{path}: not UTF-8 text; the file is damaged") from None
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {
            entry.get("name"): entry.get("template")
            for entry in template
            if isinstance(entry, dict)
        }
        template = named.get("default")
    if template is not None and (
        not isinstance(template, str) or len(template) > _MAX_TEMPLATE_BYTES
    ):
        raise CorruptSnapshot(
            f"{folder / 'tokenizer_config.json'}: chat_template is no template text"
        )
    return template


def _generation(
    folder: Path, config: dict[str, Any], tokenizer_eos: int | None, vocab_size: int
) -> GenerationDefaults:
    """generation_config.json, with config.json and the tokenizer to say what ends an answer."""
    path = folder / "generation_config.json"
    settings = _optional_json(path)
    eos = settings.get("eos_token_id")
    if eos is None:
        eos = config.get("eos_token_id")
    stops = [token for token in (eos if isinstance(eos, list) else [eos]) if token is not None]
    if tokenizer_eos is not None:
        stops.append(tokenizer_eos)
    for token in stops:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise CorruptSnapshot(
                f"{folder}: eos_token_id {str(token)[:40]} is not in the vocabulary of {vocab_size}"
            )
    top_k = settings.get("top_k")
    return generation_defaults(
        str(path),
        {
            "eos_token_ids": tuple(dict.fromkeys(stops)),
            "temperature": settings.get("temperature"),
            "top_p": settings.get("top_p"),
            "top_k": None if top_k in (0, -1) else top_k,  # both mean off
        },
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json_object(path, max_bytes=_MAX_JSON_BYTES) if path.is_file() else {}
