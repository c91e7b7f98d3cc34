"""FunctionSpec: what a user says about a function. All parts share it.

Durations are seconds, or strings such as "90s", "5m", "1h30m". Every validation message
names the field and the fix.
"""

import hashlib
import json
import re
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from glowplug.accelerators import AUTO, CLASS_PATTERN
from glowplug.errors import InvalidSpec
from glowplug.fields import DNS_LABEL, Bytes, Seconds
from glowplug.schedule import MAX_SCHEDULES, Schedule, conflict, zone_of

_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,63}")
MAX_ADAPTERS = 128
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SOURCES = "a folder, a .gguf file, package://PACKAGE/FILE.gguf or s3://BUCKET/PREFIX"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")

Dtype = Literal["bfloat16", "float32"]
Quantization = Literal["none", "int8", "int4"]
Speculation = Literal["auto", "off"]
Predictive = Literal["off", "forecast", "on", "auto"]
PoolingMethod = Literal["mean", "last", "cls"]
Pooling = Literal["auto", PoolingMethod]


class QueueLimits(BaseModel):
    """How much the activator holds for one function while no replica has room."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_requests: int = Field(200, ge=1, le=100_000)
    max_bytes: Bytes = Field(64 * 2**20, ge=1024, le=2**34)


class FunctionSpec(BaseModel):
    """A deployed model and its serving settings.

    `revision` is derived: it changes exactly when the model or a setting that a running
    replica cannot change does; scaling settings and timeouts apply to running replicas.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=DNS_LABEL, description="DNS label; part of the invoke URL")
    model: str = Field(
        pattern=r"\S",
        max_length=4096,
        description="a folder, a .gguf file, package://PACKAGE/FILE.gguf or s3://BUCKET/PREFIX",
    )
    digest: str | None = Field(
        None, description="the snapshot that the model must be sealed into, or fetched as"
    )
    dtype: Dtype = Field("bfloat16", description="precision that the weights are sealed in")
    quantization: Quantization = Field(
        "none", description="bits of the weights; less memory and time for some accuracy"
    )
    max_context: int | None = Field(
        None, ge=16, le=10_000_000, description="tokens; default: the model's own limit"
    )
    max_seqs: int = Field(16, ge=1, le=1024, description="sequences that one replica runs at once")
    kv_cache_bytes: Bytes = Field(
        512 * 2**20, ge=2**20, description="KV cache memory of one replica"
    )

    speculation: Speculation = Field(
        "auto", description="guess tokens where that is faster; it never changes an answer"
    )
    draft_model: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="a smaller model of the same vocabulary that guesses tokens, sealed with it",
    )
    pooling: Pooling = Field(
        "auto", description="which tokens make an embedding; auto: as the model says"
    )

    prefix_snapshot_bytes: Bytes = Field(
        64 * 2**20,
        ge=0,
        le=2**40,
        description="of hot prompt prefixes' KV, kept for the next start",
    )

    adapters: dict[str, str] = Field(
        {},
        max_length=MAX_ADAPTERS,
        description="LoRA adapters by name: folders that PEFT saved; requests name one as "
        "function:adapter",
    )
    adapter_cache_bytes: Bytes = Field(
        512 * 2**20, ge=2**20, description="memory of one replica for adapters in use"
    )

    accelerator: str = Field(
        AUTO,
        pattern=CLASS_PATTERN,
        description="the class of machine that it must run on: auto, cpu, cuda or a GPU's name",
    )

    min_replicas: int = Field(0, ge=0, le=1000)
    max_replicas: int = Field(1, ge=1, le=1000)
    activation_replicas: int = Field(
        1, ge=1, le=1000, description="replicas at least when the first request comes"
    )
    priority: int = Field(
        0, ge=-100, le=100, description="who gets replicas when there are not enough: the highest"
    )
    idle_s: Seconds | None = Field(
        None, ge=0, le=7 * 86400, description="idle time until scale to zero; default: learned"
    )
    cold_start_cost_s: Seconds | None = Field(
        None,
        ge=0,
        le=30 * 86400,
        description="replica time that avoiding a cold start is worth, where idle_s is learned",
    )

    sleep_s: Seconds | None = Field(
        None,
        ge=0,
        le=7 * 86400,
        description="idle time until a replica sleeps: gives its KV memory",
    )

    predictive: Predictive = Field(
        "auto", description="whether replicas are started ahead of what is foretold"
    )
    timezone: str = Field(
        "UTC", max_length=64, description="IANA zone whose days and weeks its traffic follows"
    )

    start_timeout_s: Seconds = Field(
        60.0, gt=0, le=86400, description="longest wait in the queue and for a cold start"
    )
    request_timeout_s: Seconds = Field(
        600.0, gt=0, le=86400, description="longest time for one request, all of it"
    )
    queue: QueueLimits = QueueLimits()
    schedules: list[Schedule] = Field(
        [], max_length=MAX_SCHEDULES, description="scheduled prewarms: replicas ready by a time"
    )

    @field_validator("adapters")
    @classmethod
    def _adapters_named(cls, adapters: dict[str, str]) -> dict[str, str]:
        for name, source in adapters.items():
            if _ADAPTER_NAME.fullmatch(name) is None:
                raise ValueError(
                    f"{name[:80]!r} is not a name for an adapter; use letters, digits, '-', '_' "
                    "and '.', 64 characters at most, the first one a letter or digit"
                )
            if not 0 < len(source) <= 4096 or not source.isprintable():
                raise ValueError(f"{name}: give the folder that PEFT's save_pretrained wrote")
        return adapters

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.quantization != "none" and self.dtype != "bfloat16":
            raise ValueError(
                f"quantization: {self.quantization} weights are used with dtype bfloat16, not "
                f"{self.dtype}; drop one of the two"
            )
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas: {self.min_replicas} is over max_replicas {self.max_replicas}; "
                "lower min_replicas or raise max_replicas"
            )
        if self.activation_replicas > self.max_replicas:
            raise ValueError(
                f"activation_replicas: {self.activation_replicas} is over max_replicas "
                f"{self.max_replicas}; lower activation_replicas or raise max_replicas"
            )
        if (found := conflict(self.schedules, self.max_replicas)) is not None:
            index, field, message = found
            raise ValueError(f"schedules.{index}.{field}: {message}")
        return self

    @field_validator("model")
    @classmethod
    def _model_is_a_source(cls, model: str) -> str:
        """What can be said of a source without looking: the rest is `find_source`'s."""
        if not model.strip() or not model.isprintable():
            raise ValueError(f"give {_SOURCES}")
        scheme = _SCHEME.match(model)
        if scheme and scheme[1] not in ("package", "s3"):
            raise ValueError(f"{scheme[0][:40]} is no kind of source; give {_SOURCES}")
        if model.lower().endswith(_PICKLES):
            raise ValueError(
                f"{model[:200]} is a Python pickle, which can run code when read; give a folder "
                "with .safetensors files or a .gguf file"
            )
        return model

    @field_validator("timezone")
    @classmethod
    def _zone_is_known(cls, timezone: str) -> str:
        zone_of(timezone)
        return timezone

    @field_validator("digest")
    @classmethod
    def _digest_is_one(cls, digest: str | None) -> str | None:
        if digest is not None and not re.fullmatch(r"sha256-[0-9a-f]{64}", digest):
            raise ValueError(
                "write sha256- and 64 hexadecimal digits, as glowplug snapshots ls --json shows it"
            )
        return digest

    @property
    def revision(self) -> str:
        """Ten hex digits that name this version of the model and its serving settings."""
        serving = {
            field: getattr(self, field)
            for field in (
                "model",
                "digest",
                "dtype",
                "quantization",
                "max_context",
                "max_seqs",
                "kv_cache_bytes",
                "speculation",
                "draft_model",
                "prefix_snapshot_bytes",
                "pooling",
                "adapters",
                "adapter_cache_bytes",
                "accelerator",
            )
        }
        return hashlib.sha256(json.dumps(serving, sort_keys=True).encode()).hexdigest()[:10]


def parse_spec(data: Any) -> FunctionSpec:
    """Validate untrusted data.

    Raises:
        InvalidSpec: with `param` naming the field and a message that says the fix.
    """
    try:
        return FunctionSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if not isinstance(data, dict):
            raise InvalidSpec(
                "a function is a JSON object with at least name and model", code="invalid_spec"
            ) from None
        if first["type"] == "extra_forbidden":
            owners: dict[str, type[BaseModel]] = {"queue": QueueLimits, "schedules": Schedule}
            owner = owners.get(str(first["loc"][0]), FunctionSpec)
            known = ", ".join(owner.model_fields)
            message = f"unknown field; the known ones are {known}"
        elif field == "name" and first["type"] == "string_pattern_mismatch":
            message = (
                "use lower-case letters, digits and '-', starting and ending with a letter or "
                "digit, 63 characters at most"
            )
        elif field == "accelerator" and first["type"] == "string_pattern_mismatch":
            message = "write auto, cpu, cuda or a GPU's name as nvidia-h200"
        elif field == "model" and first["type"] == "string_pattern_mismatch":
            message = f"is empty; name {_SOURCES}"
        if not field:  # a model validator's message names its field itself
            field, _, message = message.partition(": ")
        raise InvalidSpec(f"{field}: {message}", param=field, code="invalid_spec") from None
