// Vectors of bfloat16 and float32: conversion, sums, exponentials. Part of cpu.cpp.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define INLINE __attribute__((always_inline)) inline

namespace {

using bf16 = uint16_t;

constexpr int64_t MAX_DIM = 256;  // of a head

AVX512 INLINE __m512 widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

AVX512 INLINE __m512 load_bf16(const bf16* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

AVX512 INLINE __m512 load_bf16(__mmask16 lanes, const bf16* p) {
  return widen(_mm256_maskz_loadu_epi16(lanes, p));
}

AVX512 INLINE void store_bf16(bf16* p, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

INLINE float widen1(bf16 x) {
  uint32_t bits = static_cast<uint32_t>(x) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

INLINE bf16 narrow1(float x) {  // round to nearest even, as the vector instruction does
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// The sums of 16 vectors, as one vector.
AVX512 INLINE __m512 sum_each(const __m512* a) {
  __m512 b[8], c[4];
  for (int i = 0; i < 8; ++i)
    b[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                         _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
  for (int i = 0; i < 4; ++i) {
    __m512d lo = _mm512_castps_pd(b[2 * i]), hi = _mm512_castps_pd(b[2 * i + 1]);
    c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi)));
  }
  __m512 d0 = _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88),
                            _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
  __m512 d1 = _mm512_add_ps(_mm512_shuffle_f32x4(c[2], c[3], 0x88),
                            _mm512_shuffle_f32x4(c[2], c[3], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(d0, d1, 0x88), _mm512_shuffle_f32x4(d0, d1, 0xdd));
}

// e^x for x <= 0; relative error below 2e-7 (Cephes' polynomial after reduction by ln 2).
AVX512 INLINE __m512 exp_negative(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.3f));
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                  5.0000001201e-1f})
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(c));
  y = _mm512_fmadd_ps(y, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(y, n);
}

// 1 / (1 + e^-x): of e^-|x|, so that nothing overflows.
AVX512 INLINE __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
  __m512 down = exp_negative(_mm512_sub_ps(zero, _mm512_abs_ps(x)));
  __mmask16 negative = _mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ);
  return _mm512_div_ps(_mm512_mask_mov_ps(one, negative, down), _mm512_add_ps(one, down));
}

// cap * tanh(x / cap), with tanh(t) = 2 sigmoid(2t) - 1; absolute error below cap * 2e-7.
AVX512 INLINE __m512 soft_cap(__m512 x, float cap) {
  __m512 s = sigmoid(_mm512_mul_ps(x, _mm512_set1_ps(2.0f / cap)));
  return _mm512_fmsub_ps(s, _mm512_set1_ps(2.0f * cap), _mm512_set1_ps(cap));
}

}  // namespace
