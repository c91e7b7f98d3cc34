// Linear layers and embeddings whose weights are 4 or 8 bits wide (snapshot/quantization.py says how
// they lie in memory). Part of cpu.cpp.
//
// The inputs are rounded to 8 bits in groups of 32, each group with its own scale, as llama.cpp does
// (Q8_1); products are then summed exactly in int32 by the VNNI instructions, 64 a time, and each
// group's sum joins a float32 sum in the order of the groups. A row's result depends on that row
// alone, to the last bit.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "linear.h"
#include "pool.h"
#include "simd.h"

#define AVX512_VNNI \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni")))

namespace {

constexpr int64_t GROUP = 32, TILE_ROWS = 16;
constexpr int64_t QUANTIZED_PIECE = 1 << 18;  // multiplications worth handing to a thread

// A tile is 16 rows: the codes of all groups, their scales (float16, one a row), and, of 4-bit
// weights, their minima. A weight is scale * code + minimum; of 8 bits, scale * (code - 128).
template <int BITS>
struct Tile {
  const uint8_t* codes;      // [groups, 64 * BITS]
  const uint16_t* scales;    // [groups, 16]
  const uint16_t* minima;    // [groups, 16], 4 bits only
  static int64_t bytes(int64_t groups) {
    return groups * TILE_ROWS * (GROUP * BITS / 8 + (BITS == 4 ? 4 : 2));
  }
  Tile(const uint8_t* weights, int64_t groups, int64_t tile)
      : codes(weights + tile * bytes(groups)),
        scales(reinterpret_cast<const uint16_t*>(codes + groups * TILE_ROWS * GROUP * BITS / 8)),
        minima(scales + groups * TILE_ROWS) {}
};

struct QuantizedLinear {
  const uint8_t* w;   // [ceil(n / 16)] tiles
  const bf16* bias;   // [n], or null
  void* y;            // [m, n]
  int64_t m, n, k;
  int output;         // enum Output
  const int8_t* x;    // [m, k]
  const float* scale;  // [m, groups]
  const int32_t* sum;  // [m, groups] of x
  int64_t groups() const { return k / GROUP; }
};

AVX512 INLINE __m512 load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

AVX512 INLINE float load_f16_one(const uint16_t* p) {
  return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_castsi128_si256(_mm_cvtsi32_si128(*p))));
}

// The codes of a group: vector j holds inputs 4j..4j+3 of each row, as bytes.
template <int BITS>
AVX512 INLINE void load_codes(const uint8_t* p, __m512i* codes) {
  if (BITS == 8) {
    for (int j = 0; j < 8; ++j) codes[j] = _mm512_loadu_si512(p + 64 * j);
    return;
  }
  const __m512i low = _mm512_set1_epi8(0x0f);
  for (int j = 0; j < 4; ++j) {
    __m512i pair = _mm512_loadu_si512(p + 64 * j);
    codes[2 * j] = _mm512_and_si512(pair, low);
    codes[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
  }
}

// 16 weight rows times COLS inputs, from input `col` on.
template <int BITS, int COLS>
AVX512_VNNI INLINE void quantized_tile(const QuantizedLinear& a, int64_t tile, int64_t col) {
  const int64_t groups = a.groups();
  const Tile<BITS> t(a.w, groups, tile);
  __m512 acc[COLS];
  for (auto& v : acc) v = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* p = t.codes + g * 64 * BITS;
    __m512i codes[8];
    load_codes<BITS>(p, codes);
    if (COLS <= 4)  // with more, arithmetic leaves the hardware's own prefetcher time enough
      for (int j = 0; j < BITS; ++j)
        _mm_prefetch(reinterpret_cast<const char*>(p + Tile<BITS>::bytes(groups) + 64 * j),
                     _MM_HINT_T0);
    const __m512 scale = load_f16(t.scales + g * TILE_ROWS);
    const __m512 minimum = BITS == 4 ? load_f16(t.minima + g * TILE_ROWS) : _mm512_setzero_ps();
    for (int c = 0; c < COLS; ++c) {
      const int64_t at = (col + c) * groups + g;
      const char* x = reinterpret_cast<const char*>(a.x + at * GROUP);
      __m512i even = BITS == 8 ? _mm512_set1_epi32(-128 * a.sum[at]) : _mm512_setzero_si512();
      __m512i odd = _mm512_setzero_si512();
      for (int j = 0; j < 8; j += 2) {
        int32_t first, second;
        std::memcpy(&first, x + 4 * j, 4);
        std::memcpy(&second, x + 4 * j + 4, 4);
        even = _mm512_dpbusd_epi32(even, codes[j], _mm512_set1_epi32(first));
        odd = _mm512_dpbusd_epi32(odd, codes[j + 1], _mm512_set1_epi32(second));
      }
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      acc[c] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(a.scale[at])), acc[c]);
      if (BITS == 4)
        acc[c] = _mm512_fmadd_ps(
            minimum, _mm512_set1_ps(a.scale[at] * static_cast<float>(a.sum[at])), acc[c]);
    }
  }
  const int64_t row = tile * TILE_ROWS;
  const int64_t rows = std::min(TILE_ROWS, a.n - row);
  const __mmask16 lanes = static_cast<__mmask16>((1u << rows) - 1);
  for (int c = 0; c < COLS; ++c) put_lanes(a.bias, a.y, a.output, (col + c) * a.n, row, lanes, acc[c]);
}

template <int BITS>
AVX512_VNNI void quantized_tiles(const QuantizedLinear& a, int64_t tile) {
  int64_t col = 0;
  for (; col + 8 <= a.m; col += 8) quantized_tile<BITS, 8>(a, tile, col);
  for (; col + 4 <= a.m; col += 4) quantized_tile<BITS, 4>(a, tile, col);
  for (; col + 2 <= a.m; col += 2) quantized_tile<BITS, 2>(a, tile, col);
  for (; col < a.m; ++col) quantized_tile<BITS, 1>(a, tile, col);
}

// One input row to 8 bits: x is about scale * code, with codes in -127..127.
AVX512 void round_row(const bf16* x, int8_t* codes, float* scales, int32_t* sums, int64_t k) {
  for (int64_t g = 0; g < k / GROUP; ++g) {
    const __m512 lo = load_bf16(x + g * GROUP), hi = load_bf16(x + g * GROUP + 16);
    const float top =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(lo), _mm512_abs_ps(hi)));
    const bool numbers = _mm512_cmp_ps_mask(lo, hi, _CMP_ORD_Q) == 0xffff;
    const __m512 inverse = _mm512_set1_ps(top > 0 ? 127.0f / top : 0.0f);
    const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(lo, inverse));
    const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(hi, inverse));
    auto* out = reinterpret_cast<__m128i*>(codes + g * GROUP);
    _mm_storeu_si128(out, _mm512_cvtsepi32_epi8(a));
    _mm_storeu_si128(out + 1, _mm512_cvtsepi32_epi8(b));
    sums[g] = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
    scales[g] = numbers ? top / 127.0f : NAN;  // what is no number must not become one
  }
}

void quantized_linear(QuantizedLinear a, const bf16* x, int bits) {
  if (a.m == 0) return;
  static thread_local std::vector<int8_t> codes;
  static thread_local std::vector<float> scales;
  static thread_local std::vector<int32_t> sums;
  const int64_t groups = a.groups();
  codes.resize(std::max<size_t>(codes.size(), a.m * a.k));
  scales.resize(std::max<size_t>(scales.size(), a.m * groups));
  sums.resize(std::max<size_t>(sums.size(), a.m * groups));
  int8_t* to = codes.data();
  float* scale = scales.data();
  int32_t* sum = sums.data();
  pool().run(a.m, 8, [&](int64_t row) {
    round_row(x + row * a.k, to + row * a.k, scale + row * groups, sum + row * groups, a.k);
  });
  a.x = to;
  a.scale = scale;
  a.sum = sum;
  const int64_t tiles = (a.n + TILE_ROWS - 1) / TILE_ROWS;
  const int64_t grain = std::max<int64_t>(1, QUANTIZED_PIECE / (TILE_ROWS * a.k * a.m));
  if (bits == 4)
    pool().run(tiles, grain, [&](int64_t tile) { quantized_tiles<4>(a, tile); });
  else
    pool().run(tiles, grain, [&](int64_t tile) { quantized_tiles<8>(a, tile); });
}

// Some rows of a quantised weight, in float32.
template <int BITS>
AVX512 void quantized_rows(const uint8_t* w, const int64_t* rows, float* y, int64_t count,
                           int64_t k) {
  const int64_t groups = k / GROUP;
  for (int64_t i = 0; i < count; ++i) {
    const Tile<BITS> t(w, groups, rows[i] / TILE_ROWS);
    const int64_t row = rows[i] % TILE_ROWS;
    for (int64_t g = 0; g < groups; ++g) {
      alignas(64) uint8_t codes[8][64];
      __m512i vectors[8];
      load_codes<BITS>(t.codes + g * 64 * BITS, vectors);
      for (int j = 0; j < 8; ++j) _mm512_store_si512(codes[j], vectors[j]);
      const float scale = load_f16_one(t.scales + g * TILE_ROWS + row);
      const float low = BITS == 4 ? load_f16_one(t.minima + g * TILE_ROWS + row)
                                  : -128.0f * scale;
      for (int64_t d = 0; d < GROUP; ++d)
        y[i * k + g * GROUP + d] =
            std::fma(scale, static_cast<float>(codes[d / 4][row * 4 + d % 4]), low);
    }
  }
}

}  // namespace
