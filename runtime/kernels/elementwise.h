// What lies between linear layers and attention: norms, rotary positions, gates. Part of cpu.cpp.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace {

AVX512 INLINE float inverse_rms(const float* x, int64_t n, float eps) {
  __m512 squares = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 v = _mm512_loadu_ps(x + i);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  float sum = _mm512_reduce_add_ps(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

AVX512 void rms_norm_row(const float* x, const float* weight, bf16* y, int64_t n, float eps) {
  const float inverse = inverse_rms(x, n, eps);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store_bf16(y + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)),
                                    _mm512_loadu_ps(weight + i)));
  for (; i < n; ++i) y[i] = narrow1(x[i] * inverse * weight[i]);
}

// y += the norm of x.
AVX512 void add_rms_norm_row(const float* x, const float* weight, float* y, int64_t n, float eps) {
  const float inverse = inverse_rms(x, n, eps);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 normed = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse));
    _mm512_storeu_ps(y + i, _mm512_fmadd_ps(normed, _mm512_loadu_ps(weight + i),
                                            _mm512_loadu_ps(y + i)));
  }
  for (; i < n; ++i) y[i] += x[i] * inverse * weight[i];
}

AVX512 void soft_cap_row(float* x, int64_t n, float cap) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = static_cast<__mmask16>((1u << std::min<int64_t>(16, n - i)) - 1);
    _mm512_mask_storeu_ps(x + i, lanes, soft_cap(_mm512_maskz_loadu_ps(lanes, x + i), cap));
  }
}

struct Rotate {
  const bf16* qkv;           // [tokens, (heads + 2 kv_heads) * dim]
  const float* table;        // [positions, 2, rotary / 2] cosines, sines
  const int64_t *positions, *slots;  // [tokens]
  const float *q_norm, *k_norm;      // [dim], or null
  bf16 *q, *keys, *values;   // q [tokens, heads, dim]; caches [slots, kv_heads, dim]
  int64_t tokens, heads, kv_heads, dim, rotary;  // the first `rotary` of a head are rotated
  float eps;
};

AVX512 void rotate_head(const Rotate& a, const bf16* in, const float* norm, const float* cos_sin,
                        bf16* out) {
  float x[MAX_DIM];
  const int64_t half = a.rotary / 2;
  for (int64_t d = 0; d < a.dim; ++d) x[d] = widen1(in[d]);
  if (norm) {
    float sum = 0;
    for (int64_t d = 0; d < a.dim; ++d) sum += x[d] * x[d];
    float inverse = 1.0f / std::sqrt(sum / static_cast<float>(a.dim) + a.eps);
    for (int64_t d = 0; d < a.dim; ++d) x[d] *= inverse * norm[d];
  }
  for (int64_t d = 0; d < half; ++d) {
    float cos = cos_sin[d], sin = cos_sin[half + d];
    out[d] = narrow1(x[d] * cos - x[d + half] * sin);
    out[d + half] = narrow1(x[d + half] * cos + x[d] * sin);
  }
  for (int64_t d = a.rotary; d < a.dim; ++d) out[d] = narrow1(x[d]);
}

AVX512 void rotate_token(const Rotate& a, int64_t t) {
  const bf16* in = a.qkv + t * (a.heads + 2 * a.kv_heads) * a.dim;
  const float* cos_sin = a.table + a.positions[t] * a.rotary;
  for (int64_t h = 0; h < a.heads; ++h)
    rotate_head(a, in + h * a.dim, a.q_norm, cos_sin, a.q + (t * a.heads + h) * a.dim);
  bf16* key = a.keys + a.slots[t] * a.kv_heads * a.dim;
  for (int64_t h = 0; h < a.kv_heads; ++h)
    rotate_head(a, in + (a.heads + h) * a.dim, a.k_norm, cos_sin, key + h * a.dim);
  std::memcpy(a.values + a.slots[t] * a.kv_heads * a.dim,
              in + (a.heads + a.kv_heads) * a.dim, a.kv_heads * a.dim * sizeof(bf16));
}

// What a gate passes on: of SiLU x sigmoid(x); of GELU, in its tanh form, x sigmoid(2u) with
// u = sqrt(2 / pi) (x + 0.044715 x^3), as (1 + tanh u) / 2 = sigmoid(2u).
enum Gate { SILU, GELU_TANH };

template <Gate GATE>
AVX512 INLINE __m512 pass(__m512 x) {
  if (GATE == SILU) return _mm512_mul_ps(x, sigmoid(x));
  __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f),
                                 _mm512_set1_ps(1.0f));
  __m512 twice_u = _mm512_mul_ps(_mm512_mul_ps(x, cubic), _mm512_set1_ps(1.5957691216f));
  return _mm512_mul_ps(x, sigmoid(twice_u));
}

// y = pass(gate) * up, where a row is all of gate, then up.
template <Gate GATE>
AVX512 void gate_row(const bf16* gate_up, bf16* y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store_bf16(y + i, _mm512_mul_ps(pass<GATE>(load_bf16(gate_up + i)),
                                    load_bf16(gate_up + n + i)));
  if (i < n) {
    const __mmask16 rest = static_cast<__mmask16>((1u << (n - i)) - 1);
    __m512 out = _mm512_mul_ps(pass<GATE>(load_bf16(rest, gate_up + i)),
                               load_bf16(rest, gate_up + n + i));
    _mm256_mask_storeu_epi16(y + i, rest, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(out)));
  }
}

}  // namespace
