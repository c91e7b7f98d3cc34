"""Weights of 4 and 8 bits: their layout in a snapshot, and how they are made from numbers.

A row is cut into groups of 32 weights, each with a float16 scale (and, of 4 bits, a minimum):

    4 bits   weight = scale · code + minimum, code in 0..15      20 bytes a group, as GGUF's Q4_1
    8 bits   weight = scale · (code - 128), code in 0..255       34 bytes a group, as GGUF's Q8_0

16 rows make a *tile*, which a kernel multiplies at once: its codes group by group, then its scales
[groups, 16], then its minima [groups, 16]. The last tile is filled up with rows of zeros. The codes
of a group lie as the VNNI instructions take them, four inputs of each of the 16 rows in 64 bytes:

    8 bits   byte [j, row, i] is the code of input 4j + i
    4 bits   byte [j, row, i] has the codes of inputs 8j + i (its low half) and 8j + 4 + i

Codes that a GGUF file holds are kept as they are: nothing is rounded twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from snapshot.layout import GROUP, TILE_ROWS, Bits, packed_bytes


@dataclass(frozen=True, slots=True)
class Codes:
    """Some rows of a quantised weight, before they are laid out."""

    codes: Tensor  # uint8 [rows, groups, 32]
    scales: Tensor  # float16 [rows, groups]
    minima: Tensor | None  # float16 [rows, groups]; 4 bits only


@dataclass(frozen=True, slots=True)
class Quantized:
    """A sealed weight [rows, columns] of 4 or 8 bits."""

    data: Tensor  # uint8 [packed_bytes(...)], tile after tile
    rows: int
    columns: int
    bits: Bits

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weights as numbers [rows, columns]."""
        return _numbers(unpack(self)).to(dtype)

    def split(self, count: int) -> list["Quantized"]:
        """As many weights of as many rows, views of this one; each ends with a tile."""
        return [
            Quantized(data, self.rows // count, self.columns, self.bits)
            for data in self.data.chunk(count)
        ]


def quantize(weights: Tensor, bits: Bits) -> Codes:
    """Round float32 [rows, columns] to the nearest codes.

    4 bits span each group's smallest and largest weight, 8 bits its largest magnitude both ways.
    The codes are chosen for the scale as it is stored, in float16.
    """
    groups = weights.view(len(weights), weights.shape[1] // GROUP, GROUP)
    if bits == 4:
        low, high = groups.aminmax(dim=-1)
        minima = low.half()
        scales = ((high - minima.float()) / 15).half()
        codes = _codes(groups - minima.float().unsqueeze(-1), scales).clamp_(0, 15)
        return Codes(codes.to(torch.uint8), scales, minima)
    scales = (groups.abs().amax(dim=-1) / 127).half()
    codes = _codes(groups, scales).clamp_(-127, 127) + 128
    return Codes(codes.to(torch.uint8), scales, None)


def _codes(values: Tensor, scales: Tensor) -> Tensor:
    inverse = torch.where(scales > 0, 1 / scales.float(), 0)
    return (values * inverse.unsqueeze(-1)).round_()


def pack(parts: Sequence[Codes], bits: Bits) -> Tensor:
    """Lay out parts, stacked top to bottom, as one weight: uint8 [packed_bytes(...)]."""
    codes = _tiles(torch.cat([part.codes for part in parts]))  # [tiles, 16, groups, 32]
    if bits == 4:
        halves = codes.view(*codes.shape[:3], 4, 2, 4)
        codes = halves[..., 0, :] | (halves[..., 1, :] << 4)
    else:
        codes = codes.view(*codes.shape[:3], 8, 4)
    sections = [codes.permute(0, 2, 3, 1, 4).flatten(1)]
    tables = [torch.cat([part.scales for part in parts])]
    if bits == 4:
        tables.append(torch.cat([part.minima for part in parts if part.minima is not None]))
    for table in tables:
        section = _tiles(table).transpose(1, 2).contiguous().view(torch.uint8)
        sections.append(section.flatten(1))
    return torch.cat(sections, dim=1).flatten()


def _tiles(rows: Tensor) -> Tensor:
    """[rows, ...] → [tiles, 16, ...], filled up with zeros."""
    missing = -len(rows) % TILE_ROWS
    filled = torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))
    return filled.view(-1, TILE_ROWS, *rows.shape[1:])


def unpack(weight: Quantized) -> Codes:
    """The codes of a sealed weight: what `pack` was given."""
    groups, bits = weight.columns // GROUP, weight.bits
    tiles = weight.data.view(-1, packed_bytes(TILE_ROWS, weight.columns, bits))
    table_bytes = groups * TILE_ROWS * 2
    sizes = [groups * TILE_ROWS * GROUP * bits // 8, table_bytes, table_bytes][
        : 3 if bits == 4 else 2
    ]
    codes, *tables = torch.split(tiles, sizes, dim=1)
    codes = codes.reshape(len(tiles), groups, -1, TILE_ROWS, 4).permute(0, 3, 1, 2, 4)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-2)
    scales, *minima = (_rows(table, groups)[: weight.rows] for table in tables)
    return Codes(
        codes.reshape(-1, groups, GROUP)[: weight.rows], scales, minima[0] if minima else None
    )


def _rows(table: Tensor, groups: int) -> Tensor:
    """Bytes [tiles, groups · 16 · 2] → float16 [rows, groups]."""
    numbers = table.contiguous().view(torch.float16).view(len(table), groups, TILE_ROWS)
    return numbers.transpose(1, 2).reshape(-1, groups)


def _numbers(codes: Codes) -> Tensor:
    """float32 [rows, columns]."""
    scales = codes.scales.float().unsqueeze(-1)
    if codes.minima is None:
        return ((codes.codes.float() - 128) * scales).flatten(1)
    return (codes.codes.float() * scales + codes.minima.float().unsqueeze(-1)).flatten(1)
