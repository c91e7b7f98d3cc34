"""How a Hugging Face folder's model embeds texts, from the files of sentence-transformers.

    modules.json                 the steps: Transformer, Pooling, and Normalize
    1_Pooling/config.json        which tokens count
    sentence_bert_config.json    how long a text may be

(sentence-transformers 5: models/{Transformer,Pooling,Normalize}.py.) Embeddings are of unit length
in any case, so Normalize changes nothing, and a mean over √n tokens is a mean. A step that would
change a vector is refused: without it the vectors would be others.
"""

from pathlib import Path
from typing import Any

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from glowplug.spec import PoolingMethod
from snapshot.json_file import read_json, read_json_object

_MAX_BYTES = 1 << 20
_MAX_MODULES = 16
_MODES: dict[str, PoolingMethod] = {
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",
    "lasttoken": "last",
    "cls": "cls",
}
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


def hf_pooling(folder: Path) -> PoolingMethod | None:
    """Which tokens make the vector; None where the folder does not say.

    Raises:
        CorruptSnapshot: a file is missing or damaged.
        UnsupportedModel: a step or a way of pooling that is not known.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    pooling: PoolingMethod | None = None
    for kind, place in _modules(path):
        if kind == "Pooling":
            pooling = _pooling_of(folder / place / "config.json")
        elif kind not in ("Transformer", "Normalize"):
            raise UnsupportedModel(f"{path}: the module {kind[:60]} is not supported")
    return pooling


def hf_text_length(folder: Path) -> int | None:
    """The longest text, in tokens, that the model is meant for; None where the folder does not say.

    Raises:
        CorruptSnapshot: the file is damaged.
        UnsupportedModel: texts are to be changed in a way that is not known.
    """
    path = folder / "sentence_bert_config.json"
    if not path.is_file():
        return None
    fields = read_json_object(path, max_bytes=_MAX_BYTES)
    if fields.get("do_lower_case"):
        raise UnsupportedModel(
            f"{path}: do_lower_case is not supported; set it in tokenizer.json's normalizer"
        )
    length = fields.get("max_seq_length")
    if length is not None and (not isinstance(length, int) or length <= 0):
        raise CorruptSnapshot(f"{path}: max_seq_length {str(length)[:40]} is not a length")
    return length


def _modules(path: Path) -> list[tuple[str, str]]:
    """Each module's class name and its folder, which lies beside modules.json."""
    modules = read_json(path, max_bytes=_MAX_BYTES)
    if not isinstance(modules, list) or len(modules) > _MAX_MODULES:
        raise CorruptSnapshot(f"{path}: holds no list of modules; the file is damaged")
    found = []
    for module in modules:
        fields: dict[str, Any] = module if isinstance(module, dict) else {}
        kind, place = fields.get("type"), fields.get("path")
        if not isinstance(kind, str) or not isinstance(place, str) or place != Path(place).name:
            raise CorruptSnapshot(
                f"{path}: a module without a type and a folder beside it; the file is damaged"
            )
        found.append((kind.rpartition(".")[2], place))
    return found


def _pooling_of(path: Path) -> PoolingMethod:
    fields = read_json_object(path, max_bytes=_MAX_BYTES)
    modes = {mode for flag, mode in _FLAGS.items() if fields.get(flag)}
    named = fields.get("pooling_mode")
    if named is not None:
        modes |= set(named) if isinstance(named, list) else {named}
    if len(modes) == 1 and (mode := str(*modes)) in _MODES:
        return _MODES[mode]
    asked = ", ".join(sorted(str(mode)[:40] for mode in modes)) or "nothing"
    raise UnsupportedModel(
        f"{path}: it pools by {asked}; supported is one of {', '.join(sorted(_MODES))}"
    )
