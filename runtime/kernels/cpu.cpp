// CPU kernels for bfloat16 decoders: linear layers, paged attention, and what lies between them.
// AVX-512 with BF16 instructions; `supported()` says whether this processor has them.
//
// - Weights are read as they lie in the snapshot, row-major [out, in]: nothing is packed at start.
// - A row's result does not depend on the rows beside it, to the last bit: every sum is taken in an
//   order that the row alone decides. So batching, chunking and speculation change no token.
// - No torch headers: pointers come in as integers, and one build serves every torch version.
// - Threads share work in small pieces (pool.h), so that a busy core slows a step, not stops it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "pool.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define INLINE __attribute__((always_inline)) inline

namespace {

using bf16 = uint16_t;

// ------------------------------------------------------------------------------------- conversion

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

// ----------------------------------------------------------------------------------------- linear
//
// Products are summed in float32 with fused multiply-add, which without AMX is twice as fast as the
// BF16 dot product (two a cycle against one in two). Lane j of an accumulator sums the inputs
// k = j, j + 16, ...; then the lanes are summed. All paths below keep to that order.

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

#include "quantized.h"

#include "attention.h"

// ------------------------------------------------------------------- norm, rotation, gate, softmax

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

// ----------------------------------------------------------------------------------------- Python

template <typename T>
T* pointer(PyObject* value) {
  return static_cast<T*>(PyLong_AsVoidPtr(value));
}

int64_t integer(PyObject* value) { return PyLong_AsLongLong(value); }

float number(PyObject* value) { return static_cast<float>(PyFloat_AsDouble(value)); }

PyObject* wrong_count() {
  PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
  return nullptr;
}

PyObject* done() {
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* py_supported(PyObject*, PyObject*) {
  __builtin_cpu_init();
  bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  return PyBool_FromLong(yes);
}

PyObject* py_set_threads(PyObject*, PyObject* count) {
  int64_t threads = integer(count);
  if (PyErr_Occurred()) return nullptr;
  pool().set_threads(static_cast<int>(threads));
  Py_RETURN_NONE;
}

PyObject* py_linear(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 8) return wrong_count();
  Linear a{pointer<bf16>(args[0]), pointer<bf16>(args[1]), pointer<bf16>(args[2]),
           pointer<void>(args[3]), integer(args[4]),       integer(args[5]),
           integer(args[6]),       static_cast<int>(integer(args[7])),
           nullptr};
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  linear(a);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_quantized_linear(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 9) return wrong_count();
  const bf16* x = pointer<bf16>(args[0]);
  QuantizedLinear a{pointer<uint8_t>(args[1]), pointer<bf16>(args[2]),
                    pointer<void>(args[3]),    integer(args[4]),
                    integer(args[5]),          integer(args[6]),
                    static_cast<int>(integer(args[7])),
                    nullptr,                   nullptr,
                    nullptr};
  const int bits = static_cast<int>(integer(args[8]));
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  quantized_linear(a, x, bits);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_quantized_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return wrong_count();
  const uint8_t* w = pointer<uint8_t>(args[0]);
  const int64_t* rows = pointer<int64_t>(args[1]);
  float* y = pointer<float>(args[2]);
  int64_t number_of_rows = integer(args[3]), k = integer(args[4]), bits = integer(args[5]);
  if (PyErr_Occurred()) return nullptr;
  if (bits == 4)
    quantized_rows<4>(w, rows, y, number_of_rows, k);
  else
    quantized_rows<8>(w, rows, y, number_of_rows, k);
  Py_RETURN_NONE;
}

PyObject* py_attention(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 16) return wrong_count();
  Attention a{pointer<bf16>(args[0]),    pointer<bf16>(args[1]),    pointer<bf16>(args[2]),
              pointer<int64_t>(args[3]), pointer<int64_t>(args[4]), pointer<int64_t>(args[5]),
              pointer<bf16>(args[6]),    integer(args[7]),          integer(args[8]),
              integer(args[9]),          integer(args[10]),         integer(args[11]),
              integer(args[12]),         integer(args[13]),         number(args[14]),
              number(args[15])};
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  attention(a);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_rms_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return wrong_count();
  const float* x = pointer<float>(args[0]);
  const float* weight = pointer<float>(args[1]);
  bf16* y = pointer<bf16>(args[2]);
  int64_t rows = integer(args[3]), n = integer(args[4]);
  float eps = number(args[5]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 8, [&](int64_t row) { rms_norm_row(x + row * n, weight, y + row * n, n, eps); });
  return done();
}

PyObject* py_add_rms_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return wrong_count();
  const float* x = pointer<float>(args[0]);
  const float* weight = pointer<float>(args[1]);
  float* y = pointer<float>(args[2]);
  int64_t rows = integer(args[3]), n = integer(args[4]);
  float eps = number(args[5]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 8,
             [&](int64_t row) { add_rms_norm_row(x + row * n, weight, y + row * n, n, eps); });
  return done();
}

PyObject* py_soft_cap(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return wrong_count();
  float* x = pointer<float>(args[0]);
  int64_t rows = integer(args[1]), n = integer(args[2]);
  float cap = number(args[3]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 1, [&](int64_t row) { soft_cap_row(x + row * n, n, cap); });
  return done();
}

PyObject* py_rotate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 15) return wrong_count();
  Rotate a{pointer<bf16>(args[0]),    pointer<float>(args[1]), pointer<int64_t>(args[2]),
           pointer<int64_t>(args[3]), pointer<float>(args[4]), pointer<float>(args[5]),
           pointer<bf16>(args[6]),    pointer<bf16>(args[7]),  pointer<bf16>(args[8]),
           integer(args[9]),          integer(args[10]),       integer(args[11]),
           integer(args[12]),         integer(args[13]),       number(args[14])};
  if (PyErr_Occurred()) return nullptr;
  pool().run(a.tokens, 4, [&](int64_t token) { rotate_token(a, token); });
  return done();
}

template <Gate GATE>
PyObject* py_gate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return wrong_count();
  const bf16* gate_up = pointer<bf16>(args[0]);
  bf16* y = pointer<bf16>(args[1]);
  int64_t rows = integer(args[2]), n = integer(args[3]);
  if (PyErr_Occurred()) return nullptr;
  pool().run(rows, 4, [&](int64_t row) { gate_row<GATE>(gate_up + row * 2 * n, y + row * n, n); });
  return done();
}

PyMethodDef methods[] = {
    {"supported", py_supported, METH_NOARGS, nullptr},
    {"set_threads", py_set_threads, METH_O, nullptr},
    {"linear", reinterpret_cast<PyCFunction>(py_linear), METH_FASTCALL, nullptr},
    {"quantized_linear", reinterpret_cast<PyCFunction>(py_quantized_linear), METH_FASTCALL,
     nullptr},
    {"quantized_rows", reinterpret_cast<PyCFunction>(py_quantized_rows), METH_FASTCALL, nullptr},
    {"attention", reinterpret_cast<PyCFunction>(py_attention), METH_FASTCALL, nullptr},
    {"rms_norm", reinterpret_cast<PyCFunction>(py_rms_norm), METH_FASTCALL, nullptr},
    {"rotate", reinterpret_cast<PyCFunction>(py_rotate), METH_FASTCALL, nullptr},
    {"add_rms_norm", reinterpret_cast<PyCFunction>(py_add_rms_norm), METH_FASTCALL, nullptr},
    {"soft_cap", reinterpret_cast<PyCFunction>(py_soft_cap), METH_FASTCALL, nullptr},
    {"silu_mul", reinterpret_cast<PyCFunction>(py_gate<SILU>), METH_FASTCALL, nullptr},
    {"gelu_mul", reinterpret_cast<PyCFunction>(py_gate<GELU_TANH>), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cpu", nullptr, -1, methods,
                      nullptr,               nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__cpu() { return PyModule_Create(&module); }
