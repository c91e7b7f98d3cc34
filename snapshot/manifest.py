"""The manifest: the last file written into a snapshot, and the only one read without a check.

A snapshot is a folder `sha256-HEX/`, where HEX is the SHA-256 of `manifest.json`'s bytes:

    manifest.json        this
    weights.safetensors  valid safetensors, each tensor at a 4 KiB boundary (see layout.py)
    tokenizer.json       for the `tokenizers` library
    draft.safetensors    the draft model's weights, laid out alike, where there is one

The manifest lists every other file with its size and SHA-256, so the digest covers every byte.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from glowplug.errors import CorruptSnapshot
from glowplug.spec import Dtype, PoolingMethod, Quantization
from snapshot.encoder_config import EncoderConfig
from snapshot.model_config import ModelConfig

FORMAT = 2
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
DRAFT_WEIGHTS = "draft.safetensors"
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_SPECIAL_TOKENS = 16  # before or after a text
_SHA256 = r"^[0-9a-f]{64}$"


class FileEntry(BaseModel):
    """One file of the snapshot. A large one also has the hashes of its pieces (hashing.py)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern=_SHA256)
    piece_bytes: int = Field(0, ge=0)
    piece_sha256: tuple[Annotated[str, Field(pattern=_SHA256)], ...] = ()

    @model_validator(mode="after")
    def _pieces_fit(self) -> Self:
        count = -(-self.size // self.piece_bytes) if self.piece_bytes else 0
        if len(self.piece_sha256) != count:
            raise ValueError(f"{len(self.piece_sha256)} pieces, its size asks for {count}")
        return self


class ChatFormat(BaseModel):
    """What turns messages into a prompt: a Jinja template and the tokens it may name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str | None  # None: the model has no chat format
    bos_token: str | None = None
    eos_token: str | None = None


class GenerationDefaults(BaseModel):
    """From generation_config.json: when to stop, and sampling where a request says nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    eos_token_ids: tuple[int, ...]
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, gt=0)


class DraftModel(BaseModel):
    """A smaller model of the same vocabulary that guesses tokens ahead (speculation)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    config: ModelConfig


class EmbeddingFormat(BaseModel):
    """How a text becomes a vector, of unit length: what is around it, and which tokens count."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pooling: PoolingMethod
    before: tuple[int, ...] = Field((), max_length=MAX_SPECIAL_TOKENS)  # the BOS or CLS token
    after: tuple[int, ...] = Field((), max_length=MAX_SPECIAL_TOKENS)  # the SEP or EOS token


class Manifest(BaseModel):
    """Everything the runtime needs to know of a snapshot."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    source: str
    dtype: Dtype
    quantization: Quantization = "none"
    config: ModelConfig | EncoderConfig = Field(discriminator="architecture")
    add_bos: bool  # whether a plain prompt (not a chat) gets a leading BOS token
    bos_token_id: int | None
    generation: GenerationDefaults
    chat: ChatFormat
    embedding: EmbeddingFormat | None = None  # None: the last token, and BOS as `add_bos` says
    draft: DraftModel | None = None
    files: dict[str, FileEntry]

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(entry.size for entry in self.files.values())

    @property
    def embeddings(self) -> EmbeddingFormat:
        """How texts are embedded."""
        if self.embedding is not None:
            return self.embedding
        return EmbeddingFormat(pooling="last", before=self._bos)

    @property
    def special_tokens(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What comes before and after a plain prompt: an encoder's is a text to embed."""
        if isinstance(self.config, EncoderConfig):
            return self.embeddings.before, self.embeddings.after
        return self._bos, ()

    @property
    def _bos(self) -> tuple[int, ...]:
        bos = self.bos_token_id
        return (bos,) if self.add_bos and bos is not None else ()

    def to_bytes(self) -> bytes:
        """The canonical bytes that the digest is taken over."""
        return self.model_dump_json(indent=1).encode()


def digest_of(manifest: bytes) -> str:
    """The snapshot's digest, `sha256-HEX`; also its folder's name."""
    return "sha256-" + hashlib.sha256(manifest).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read and check a snapshot's manifest against the folder's name and the files' sizes.

    Raises:
        CorruptSnapshot: missing, changed, of another format, or a file has another size.
    """
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise CorruptSnapshot(f"{path}: cannot be read ({error.strerror})") from None
    manifest = parse_manifest(data, digest=folder.name, where=str(path))
    for name, entry in manifest.files.items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else -1
        if size != entry.size:
            raise CorruptSnapshot(
                f"{folder / name}: {size if size >= 0 else 'no'} bytes, the manifest says "
                f"{entry.size}; delete the snapshot and seal it again"
            )
    return manifest


def parse_manifest(data: bytes, *, digest: str, where: str) -> Manifest:
    """Check a manifest's bytes against the digest, and what they say. `where` is for the message.

    Raises:
        CorruptSnapshot: changed, of another format, or it lists other files than a snapshot has.
    """
    if len(data) > MAX_MANIFEST_BYTES or digest_of(data) != digest:
        raise CorruptSnapshot(f"{where}: does not match the snapshot's digest; seal it again")
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise CorruptSnapshot(f"{where}: {first['loc']}: {first['msg']}; seal it again") from None
    if manifest.format != FORMAT:
        raise CorruptSnapshot(
            f"{where}: format {manifest.format}, this version reads {FORMAT}; seal it again"
        )
    expected = {WEIGHTS, TOKENIZER} | ({DRAFT_WEIGHTS} if manifest.draft else set())
    if manifest.files.keys() != expected:
        raise CorruptSnapshot(f"{where}: lists other files than a snapshot has; seal it again")
    return manifest
