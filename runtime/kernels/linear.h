// Linear layers with bfloat16 weights. Part of cpu.cpp.
//
// Products are summed in float32 with fused multiply-add, which without AMX is twice as fast as the
// BF16 dot product (two a cycle against one in two). Lane j of an accumulator sums the inputs
// k = j, j + 16, ...; then the lanes are summed. All paths below keep to that order.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pool.h"
#include "simd.h"

namespace {

enum Output { STORE_BF16 = 0, STORE_F32 = 1, ADD_F32 = 2 };

struct Linear {
  const bf16* x;     // [m, k]
  const bf16* w;     // [n, k]
  const bf16* bias;  // [n], or null
  void* y;           // [m, n]
  int64_t m, n, k;
  int output;
  const float* wide_x;  // x in float32
};

constexpr int64_t LINEAR_PIECE = 1 << 16;  // multiplications worth handing to a thread

// ROWS weight rows (from w) times COLS inputs (from x), ROWS * COLS = 16: one output a lane,
// input-major. PREFETCH fetches the rows 16 further on, so that memory works while the arithmetic
// does; reading past the last row is harmless there.
template <int ROWS, int COLS, bool PREFETCH>
AVX512 INLINE __m512 tile(const bf16* w, const float* x, int64_t n) {
  __m512 acc[16];
  for (auto& v : acc) v = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    __m512 xs[COLS];
    for (int c = 0; c < COLS; ++c) xs[c] = _mm512_loadu_ps(x + c * n + k);
    for (int r = 0; r < ROWS; ++r) {
      __m512 ws = load_bf16(w + r * n + k);
      if (PREFETCH && k % 32 == 0)
        _mm_prefetch(reinterpret_cast<const char*>(w + (r + 16) * n + k), _MM_HINT_T1);
      for (int c = 0; c < COLS; ++c)
        acc[c * ROWS + r] = _mm512_fmadd_ps(ws, xs[c], acc[c * ROWS + r]);
    }
  }
  if (k < n) {
    const __mmask16 rest = static_cast<__mmask16>((1u << (n - k)) - 1);
    for (int r = 0; r < ROWS; ++r) {
      __m512 ws = load_bf16(rest, w + r * n + k);
      for (int c = 0; c < COLS; ++c)
        acc[c * ROWS + r] = _mm512_fmadd_ps(ws, _mm512_maskz_loadu_ps(rest, x + c * n + k),
                                            acc[c * ROWS + r]);
    }
  }
  return sum_each(acc);
}

// Write some adjacent outputs, from `row` on, of the input whose outputs begin at `base`.
AVX512 INLINE void put_lanes(const bf16* bias, void* y, int output, int64_t base, int64_t row,
                             __mmask16 lanes, __m512 values) {
  if (bias) values = _mm512_add_ps(values, load_bf16(lanes, bias + row));
  const int64_t at = base + row;
  if (output == STORE_BF16) {
    _mm256_mask_storeu_epi16(static_cast<bf16*>(y) + at, lanes,
                             reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
  } else {
    float* to = static_cast<float*>(y) + at;
    if (output == ADD_F32) values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(lanes, to));
    _mm512_mask_storeu_ps(to, lanes, values);
  }
}

// Write 16 / COLS adjacent outputs of each of COLS inputs.
template <int COLS>
AVX512 INLINE void put(const Linear& a, int64_t row, int64_t col, __m512 sums) {
  constexpr int ROWS = 16 / COLS;
  constexpr __mmask16 lanes = static_cast<__mmask16>((1u << ROWS) - 1);
  for (int c = 0; c < COLS; ++c) {
    if (c > 0) sums = _mm512_maskz_compress_ps(static_cast<__mmask16>(0xffffu << ROWS), sums);
    put_lanes(a.bias, a.y, a.output, (col + c) * a.n, row, lanes, sums);
  }
}

// 16 weight rows, COLS inputs at a time as long as there are that many; returns the next input.
// With PREFETCH only the first of them.
template <int COLS, bool PREFETCH>
AVX512 INLINE int64_t columns(const Linear& a, int64_t row, int64_t col) {
  constexpr int ROWS = 16 / COLS;
  for (; col + COLS <= a.m; col += COLS) {
    for (int64_t r = row; r < row + 16; r += ROWS)
      put<COLS>(a, r, col, tile<ROWS, COLS, PREFETCH>(a.w + r * a.k, a.wide_x + col * a.k, a.k));
    if (PREFETCH) return col + COLS;
  }
  return col;
}

AVX512 void linear_block(const Linear& a, int64_t row) {  // 16 weight rows, all inputs
  int64_t col = a.m >= 4   ? columns<4, true>(a, row, 0)
                : a.m >= 2 ? columns<2, true>(a, row, 0)
                           : columns<1, true>(a, row, 0);
  col = columns<4, false>(a, row, col);
  col = columns<2, false>(a, row, col);
  columns<1, false>(a, row, col);
}

AVX512 void widen_row(const bf16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) _mm512_storeu_ps(to + i, load_bf16(from + i));
  for (; i < count; ++i) to[i] = widen1(from[i]);
}

// One weight row that has no 15 neighbours, all inputs.
AVX512 void linear_row(const Linear& a, int64_t row) {
  for (int64_t col = 0; col < a.m; ++col) {
    const bf16* w = a.w + row * a.k;
    const float* x = a.wide_x + col * a.k;
    __m512 acc[16];
    for (auto& v : acc) v = _mm512_setzero_ps();
    for (int64_t k = 0; k < a.k; k += 16) {
      const int64_t rest = std::min<int64_t>(16, a.k - k);
      const __mmask16 lanes = static_cast<__mmask16>((1u << rest) - 1);
      acc[0] = _mm512_fmadd_ps(load_bf16(lanes, w + k), _mm512_maskz_loadu_ps(lanes, x + k), acc[0]);
    }
    float sum = _mm512_cvtss_f32(sum_each(acc)) + (a.bias ? widen1(a.bias[row]) : 0);
    const int64_t at = col * a.n + row;
    if (a.output == STORE_BF16)
      static_cast<bf16*>(a.y)[at] = narrow1(sum);
    else
      static_cast<float*>(a.y)[at] = (a.output == ADD_F32 ? static_cast<float*>(a.y)[at] : 0) + sum;
  }
}

void linear(Linear a) {
  if (a.m == 0) return;  // a chunk that ends inside its prompt asks for no logits
  static thread_local std::vector<float> wide_x;
  wide_x.resize(std::max<size_t>(wide_x.size(), a.m * a.k));
  float* to = wide_x.data();
  pool().run(a.m, 16, [&](int64_t col) { widen_row(a.x + col * a.k, to + col * a.k, a.k); });
  a.wide_x = to;
  const int64_t blocks = a.n / 16;
  const int64_t grain = std::max<int64_t>(1, LINEAR_PIECE / (16 * a.k * a.m));
  pool().run(blocks, grain, [&](int64_t block) { linear_block(a, block * 16); });
  for (int64_t row = blocks * 16; row < a.n; ++row) linear_row(a, row);
}

}  // namespace
