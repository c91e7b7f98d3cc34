"""The KV cache's memory: one allocation, paged by the block pool's block numbers."""

import math
import mmap

import torch
from torch import Tensor

from glowplug.errors import UnsupportedModel
from snapshot.model_config import ModelConfig


class KVCache:
    """Keys and values of all layers: [layers, 2, blocks, block_size, kv_heads, head_dim].

    Attention reads whole blocks and masks what no sequence has written yet; a masked NaN would
    still spoil the sum, so every slot always holds a number. The zeros it starts with are the
    kernel's: an untouched page costs no memory.
    """

    def __init__(
        self, config: ModelConfig, *, blocks: int, block_size: int, dtype: torch.dtype, device: str
    ) -> None:
        """Raises UnsupportedModel when the machine cannot reserve so much."""
        self.block_size = block_size
        self.dtype = dtype
        self.block_bytes = bytes_per_block(config, block_size=block_size, dtype=dtype)
        shape = (config.num_layers, 2, blocks, block_size, config.num_kv_heads, config.head_dim)
        if device == "cpu":
            size_bytes = math.prod(shape) * dtype.itemsize
            try:
                pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError:
                raise UnsupportedModel(
                    f"kv_cache_bytes: {size_bytes} bytes cannot be reserved here; lower it"
                ) from None
            # A huge page would be zeroed whole at the first token of each layer: 2 MiB, 60 times.
            pages.madvise(mmap.MADV_NOHUGEPAGE)
            self._pages: mmap.mmap | None = pages
            self._memory = torch.frombuffer(pages, dtype=dtype).view(shape)
        else:
            self._pages = None
            self._memory = torch.zeros(shape, dtype=dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self._memory.unbind(0)]

    def layer(self, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values of layer n, each [blocks, block_size, kv_heads, head_dim]."""
        return self._layers[n]

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Of what `block` gives."""
        layers, two, _, *rest = self._memory.shape
        return (layers, two, *rest)

    def block(self, n: int) -> Tensor:
        """Block n of all layers, [layers, 2, block_size, kv_heads, head_dim], to read or write."""
        return self._memory[:, :, n]

    def clear(self, blocks: list[int]) -> None:
        """Zero blocks that may hold something other than numbers, before they are freed."""
        self._memory[:, :, blocks] = 0

    def give_back(self) -> None:
        """Free the memory; what it held is lost. `take_again` before the next use."""
        if self._pages is not None:
            self._pages.madvise(mmap.MADV_DONTNEED)  # zeros again, taken page by page when touched
        else:
            self._memory.untyped_storage().resize_(0)  # the layers' views stay valid

    def take_again(self) -> None:
        """Have the memory once more, all zeros. Raises torch's OutOfMemoryError on a device."""
        if self._pages is None:
            self._memory.untyped_storage().resize_(self._memory.numel() * self._memory.itemsize)
            self._memory.zero_()


def bytes_per_block(config: ModelConfig, *, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return per_token * block_size * dtype.itemsize


def tokens_held(
    config: ModelConfig, *, kv_cache_bytes: int, block_size: int, dtype: torch.dtype
) -> int:
    """How many tokens a cache of this size holds, in whole blocks."""
    block_bytes = bytes_per_block(config, block_size=block_size, dtype=dtype)
    return kv_cache_bytes // block_bytes * block_size
