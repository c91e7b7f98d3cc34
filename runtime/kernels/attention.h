// Attention over the paged KV cache. Part of cpu.cpp.
//
// Consecutive tokens of one sequence are taken together, with all heads that share their keys: a
// step's keys are widened to float32 and transposed once for all of them. Then each query's scores
// are 16 keys a vector, no lanes to sum.
//
// A query's result does not depend on the queries beside it: keys are taken in steps of 64 and parts
// of 256 that lie at multiples of those, every sum has an order of its own, and the parts are merged
// in theirs. So decoding, prefill in any chunks and drafts agree to the last bit.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "linear.h"
#include "pool.h"
#include "simd.h"

namespace {

struct Attention {
  const bf16* q;              // [rows, heads, dim]
  const bf16 *keys, *values;  // [blocks, block_size, kv_heads, dim]
  const int64_t* tables;      // [sequences, width] block numbers
  const int64_t* sequence;    // [rows] whose table
  const int64_t* position;    // [rows] of the token; it sees the keys up to its own
  bf16* out;                  // [rows, heads, dim]
  int64_t rows, heads, kv_heads, dim, block_size, width, window;
  float scale, cap;  // cap: scores are soft-capped, unless it is 0
  int64_t group() const { return heads / kv_heads; }
  int64_t first(int64_t row) const {  // the first key that it sees
    return window > 0 ? std::max<int64_t>(0, position[row] + 1 - window) : 0;
  }
};

constexpr int64_t STEP_KEYS = 64, PART_KEYS = 256;
constexpr int64_t TILE_QUERIES = 24;  // so many share a step's keys; more would leave the caches
constexpr int AT_ONCE = 4;            // queries in registers together
constexpr int64_t MANY_ITEMS = 16;    // then no context is shared out between threads

// Consecutive tokens of one sequence: rows begin..end.
struct QueryTile {
  int64_t begin, end;
};

// The softmax of one query over a part of the keys: max, sum, then acc [dim].
struct Partial {
  float *max, *sum, *acc;
  explicit Partial(float* at) : max(at), sum(at + 1), acc(at + 2) {}
  static int64_t size(int64_t dim) { return dim + 2; }
};

// What a thread works in.
struct Scratch {
  std::vector<float> queries, keys, values, scores, partials;
};

AVX512 INLINE void transpose16(__m512i* r) {  // 16 x 16 of 32 bits
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // r[4a + i] has columns i, 4 + i, 8 + i, 12 + i of rows 4a..4a+3
    __m512i low = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    __m512i high = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    __m512i low2 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    __m512i high2 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    t[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    t[i + 12] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// A step's keys: where each lies in `keys` and `values`. Those after `last` are not read: their
// places are the last one's.
struct Step {
  int64_t count;           // of keys, a multiple of 16
  int64_t at[STEP_KEYS];
};

INLINE Step step_of(const Attention& a, const int64_t* table, int64_t kv_head, int64_t key,
                    int64_t last) {
  Step step;
  step.count = std::min(STEP_KEYS, (last - key) / 16 * 16 + 16);
  for (int64_t i = 0; i < step.count; ++i) {
    const int64_t k = std::min(key + i, last);
    const int64_t slot = table[k / a.block_size] * a.block_size + k % a.block_size;
    step.at[i] = (slot * a.kv_heads + kv_head) * a.dim;
  }
  return step;
}

// 32 dimensions of 16 keys, transposed: vector i holds dimensions d + 2i (low half) and d + 2i + 1.
AVX512 INLINE void load_pairs(const Attention& a, const int64_t* at, int64_t d, __m512i* pairs) {
  for (int i = 0; i < 16; ++i) pairs[i] = _mm512_loadu_si512(a.keys + at[i] + d);
  transpose16(pairs);
}

AVX512 INLINE __m512 even_of(__m512i pair) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}

AVX512 INLINE __m512 odd_of(__m512i pair) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// A step's keys as [dim, 64] and its values as [64, dim], in float32.
AVX512 void widen_step(const Attention& a, const Step& step, float* keys, float* values) {
  for (int64_t part = 0; part < step.count; part += 16) {
    for (int64_t d = 0; d < a.dim; d += 32) {
      __m512i pairs[16];
      load_pairs(a, step.at + part, d, pairs);
      for (int i = 0; i < 16; ++i) {
        float* to = keys + (d + 2 * i) * STEP_KEYS + part;
        _mm512_storeu_ps(to, even_of(pairs[i]));
        _mm512_storeu_ps(to + STEP_KEYS, odd_of(pairs[i]));
      }
    }
    for (int i = 0; i < 16; ++i)
      for (int64_t d = 0; d < a.dim; d += 16)
        _mm512_storeu_ps(values + (part + i) * a.dim + d,
                         load_bf16(a.values + step.at[part + i] + d));
  }
}

// Dot products of N queries with 16 keys: the even dimensions' sum and the odd ones', added. Of
// keys that are widened, or (for so few queries that widening would not pay) as they lie.
template <int N>
AVX512 INLINE void dot_keys(const float* queries, const float* keys, int64_t dim, float* scores) {
  __m512 even[N], odd[N];
  for (int n = 0; n < N; ++n) even[n] = odd[n] = _mm512_setzero_ps();
  for (int64_t d = 0; d < dim; d += 2) {
    const __m512 k0 = _mm512_loadu_ps(keys + d * STEP_KEYS);
    const __m512 k1 = _mm512_loadu_ps(keys + (d + 1) * STEP_KEYS);
    for (int n = 0; n < N; ++n) {
      even[n] = _mm512_fmadd_ps(k0, _mm512_set1_ps(queries[n * dim + d]), even[n]);
      odd[n] = _mm512_fmadd_ps(k1, _mm512_set1_ps(queries[n * dim + d + 1]), odd[n]);
    }
  }
  for (int n = 0; n < N; ++n)
    _mm512_storeu_ps(scores + n * STEP_KEYS, _mm512_add_ps(even[n], odd[n]));
}

template <int N>
AVX512 INLINE void dot_keys_in_place(const Attention& a, const int64_t* at, const float* queries,
                                     float* scores) {
  __m512 even[N], odd[N];
  for (int n = 0; n < N; ++n) even[n] = odd[n] = _mm512_setzero_ps();
  for (int64_t d = 0; d < a.dim; d += 32) {
    __m512i pairs[16];
    load_pairs(a, at, d, pairs);
    for (int i = 0; i < 16; ++i) {
      const __m512 k0 = even_of(pairs[i]), k1 = odd_of(pairs[i]);
      for (int n = 0; n < N; ++n) {
        const float* q = queries + n * a.dim + d + 2 * i;
        even[n] = _mm512_fmadd_ps(k0, _mm512_set1_ps(q[0]), even[n]);
        odd[n] = _mm512_fmadd_ps(k1, _mm512_set1_ps(q[1]), odd[n]);
      }
    }
  }
  for (int n = 0; n < N; ++n)
    _mm512_storeu_ps(scores + n * STEP_KEYS, _mm512_add_ps(even[n], odd[n]));
}

// Scores of one query and a step's keys to weights, of which those outside lo..hi are zero; what
// the sums so far are to be multiplied by.
AVX512 INLINE float soften(const Attention& a, float* scores, int64_t lo, int64_t hi,
                           Partial partial) {
  __m512 s[4];
  __mmask16 seen[4];
  float top = *partial.max;
  for (int c = 0; c < 4; ++c) {
    const uint64_t lanes = (~0ull << lo) & (hi == 64 ? ~0ull : (1ull << hi) - 1);
    seen[c] = static_cast<__mmask16>(lanes >> (16 * c));
    s[c] = _mm512_maskz_mul_ps(seen[c], _mm512_loadu_ps(scores + 16 * c), _mm512_set1_ps(a.scale));
    if (a.cap > 0) s[c] = soft_cap(s[c], a.cap);
    if (seen[c]) top = std::max(top, _mm512_mask_reduce_max_ps(seen[c], s[c]));
  }
  __m512 sum = _mm512_setzero_ps();
  for (int c = 0; c < 4; ++c) {
    s[c] = _mm512_maskz_mov_ps(seen[c], exp_negative(_mm512_sub_ps(s[c], _mm512_set1_ps(top))));
    sum = _mm512_add_ps(sum, s[c]);
    _mm512_storeu_ps(scores + 16 * c, s[c]);
  }
  const float keep = std::exp(*partial.max - top);
  *partial.max = top;
  *partial.sum = *partial.sum * keep + _mm512_reduce_add_ps(sum);
  return keep;
}

// Add a step's weighted values to 16 * VECTORS dimensions of N queries' sums.
template <int N, int VECTORS, bool WIDENED>
AVX512 INLINE void add_values(const Attention& a, const Step& step, const float* weights,
                              const float* widened, const float* keep, float* const* acc,
                              int64_t d) {
  __m512 sums[N][VECTORS];
  for (int n = 0; n < N; ++n)
    for (int v = 0; v < VECTORS; ++v)
      sums[n][v] = _mm512_mul_ps(_mm512_loadu_ps(acc[n] + d + 16 * v), _mm512_set1_ps(keep[n]));
  for (int64_t k = 0; k < step.count; ++k) {
    for (int v = 0; v < VECTORS; ++v) {
      const __m512 value = WIDENED ? _mm512_loadu_ps(widened + k * a.dim + d + 16 * v)
                                   : load_bf16(a.values + step.at[k] + d + 16 * v);
      for (int n = 0; n < N; ++n)
        sums[n][v] = _mm512_fmadd_ps(value, _mm512_set1_ps(weights[n * STEP_KEYS + k]), sums[n][v]);
    }
  }
  for (int n = 0; n < N; ++n)
    for (int v = 0; v < VECTORS; ++v) _mm512_storeu_ps(acc[n] + d + 16 * v, sums[n][v]);
}

// N neighbouring queries through one step of keys, of which each sees lo..hi.
template <int N, bool WIDENED>
AVX512 void step_queries(const Attention& a, const Step& step, const float* queries,
                         Scratch& scratch, const int64_t* lo, const int64_t* hi,
                         float* const* partials) {
  float* scores = scratch.scores.data();
  for (int64_t part = 0; part < step.count; part += 16) {
    if (WIDENED)
      dot_keys<N>(queries, scratch.keys.data() + part, a.dim, scores + part);
    else
      dot_keys_in_place<N>(a, step.at + part, queries, scores + part);
  }
  float keep[N];
  float* acc[N];
  for (int n = 0; n < N; ++n) {
    keep[n] = soften(a, scores + n * STEP_KEYS, lo[n], hi[n], Partial(partials[n]));
    acc[n] = Partial(partials[n]).acc;
  }
  const float* values = scratch.values.data();
  int64_t d = 0;
  for (; d + 64 <= a.dim; d += 64)
    add_values<N, 4, WIDENED>(a, step, scores, values, keep, acc, d);
  for (; d < a.dim; d += 32) add_values<N, 2, WIDENED>(a, step, scores, values, keep, acc, d);
}

using StepQueries = void (*)(const Attention&, const Step&, const float*, Scratch&, const int64_t*,
                             const int64_t*, float* const*);
constexpr StepQueries WITH_WIDENED[AT_ONCE] = {step_queries<1, true>, step_queries<2, true>,
                                               step_queries<3, true>, step_queries<4, true>};
constexpr StepQueries IN_PLACE[AT_ONCE] = {step_queries<1, false>, step_queries<2, false>,
                                           step_queries<3, false>, step_queries<4, false>};

// A tile's queries over one part of its keys, for one key head. `partials`: [queries, dim + 2].
AVX512 void attend(const Attention& a, QueryTile tile, int64_t kv_head, int64_t part,
                   Scratch& scratch, float* partials) {
  const int64_t group = a.group(), size = Partial::size(a.dim);
  const int64_t* table = a.tables + a.sequence[tile.begin] * a.width;
  const int64_t queries = (tile.end - tile.begin) * group;
  for (int64_t n = 0; n < queries; ++n) {
    Partial partial(partials + n * size);
    *partial.max = -INFINITY;
    *partial.sum = 0;
    std::fill(partial.acc, partial.acc + a.dim, 0.0f);
  }
  const int64_t last = std::min(a.position[tile.end - 1], (part + 1) * PART_KEYS - 1);
  int64_t key = std::max(a.first(tile.begin) / STEP_KEYS * STEP_KEYS, part * PART_KEYS);
  for (; key <= last; key += STEP_KEYS) {
    const Step step = step_of(a, table, kv_head, key, last);
    const bool widened = queries > AT_ONCE;
    if (widened) widen_step(a, step, scratch.keys.data(), scratch.values.data());
    for (int64_t n = 0; n < queries;) {
      int64_t lo[AT_ONCE], hi[AT_ONCE];
      float* into[AT_ONCE];
      int64_t taken = 0;
      for (; n < queries && taken < AT_ONCE; ++n) {  // neighbours that all see a key of it
        const int64_t row = tile.begin + n / group;
        const int64_t begin = std::max<int64_t>(0, a.first(row) - key);
        const int64_t end = std::min(STEP_KEYS, a.position[row] + 1 - key);
        if (begin >= end) {
          if (taken) break;
          continue;
        }
        lo[taken] = begin;
        hi[taken] = end;
        into[taken++] = partials + n * size;
      }
      if (!taken) break;
      const float* q = scratch.queries.data() + (n - taken) * a.dim;
      const auto run = widened ? WITH_WIDENED[taken - 1] : IN_PLACE[taken - 1];
      run(a, step, q, scratch, lo, hi, into);
    }
  }
}

// The parts of a tile's queries, [parts, queries, dim + 2], merged into their outputs.
AVX512 void merge(const Attention& a, QueryTile tile, int64_t kv_head, int64_t parts,
                  float* partials) {
  const int64_t group = a.group(), size = Partial::size(a.dim);
  const int64_t queries = (tile.end - tile.begin) * group;
  for (int64_t n = 0; n < queries; ++n) {
    auto part = [&](int64_t p) { return Partial(partials + (p * queries + n) * size); };
    float top = -INFINITY, sum = 0;
    for (int64_t p = 0; p < parts; ++p) top = std::max(top, *part(p).max);
    for (int64_t p = 0; p < parts; ++p) sum += *part(p).sum * std::exp(*part(p).max - top);
    const int64_t head = kv_head * group + n % group;
    bf16* out = a.out + ((tile.begin + n / group) * a.heads + head) * a.dim;
    for (int64_t d = 0; d < a.dim; d += 16) {
      __m512 acc = _mm512_setzero_ps();
      for (int64_t p = 0; p < parts; ++p)
        acc = _mm512_fmadd_ps(_mm512_loadu_ps(part(p).acc + d),
                              _mm512_set1_ps(std::exp(*part(p).max - top) / sum), acc);
      store_bf16(out + d, acc);
    }
  }
}

AVX512 Scratch& scratch_for(const Attention& a, QueryTile tile, int64_t kv_head) {
  static thread_local Scratch scratch;
  const int64_t group = a.group(), queries = (tile.end - tile.begin) * group;
  auto grow = [](std::vector<float>& v, int64_t size) {
    v.resize(std::max<size_t>(v.size(), static_cast<size_t>(size)));
  };
  grow(scratch.queries, queries * a.dim);
  grow(scratch.keys, a.dim * STEP_KEYS);
  grow(scratch.values, a.dim * STEP_KEYS);
  grow(scratch.scores, AT_ONCE * STEP_KEYS);
  for (int64_t n = 0; n < queries; ++n)
    widen_row(a.q + ((tile.begin + n / group) * a.heads + kv_head * group + n % group) * a.dim,
              scratch.queries.data() + n * a.dim, a.dim);
  return scratch;
}

std::vector<QueryTile> tiles_of(const Attention& a) {
  const int64_t most = std::max<int64_t>(1, TILE_QUERIES / a.group());
  std::vector<QueryTile> tiles;
  for (int64_t row = 0; row < a.rows; ++row) {
    const bool follows = row > 0 && a.sequence[row] == a.sequence[row - 1] &&
                         a.position[row] == a.position[row - 1] + 1;
    if (follows && row - tiles.back().begin < most)
      tiles.back().end = row + 1;
    else
      tiles.push_back({row, row + 1});
  }
  return tiles;
}

// Every row over its sequence's context. The parts of few contexts are shared out between the
// threads (flash decoding: Dao et al. 2023); of many each thread does whole ones.
void attention(const Attention& a) {
  const std::vector<QueryTile> tiles = tiles_of(a);
  const int64_t items = static_cast<int64_t>(tiles.size()) * a.kv_heads;
  // One head's keys for all tiles, then the next one's: they stay in the cache.
  const int64_t count = static_cast<int64_t>(tiles.size());
  auto tile_of = [&](int64_t item) { return tiles[static_cast<size_t>(item % count)]; };
  auto first = [&](QueryTile tile) { return a.first(tile.begin) / PART_KEYS; };
  auto parts = [&](QueryTile tile) {
    return a.position[tile.end - 1] / PART_KEYS + 1 - first(tile);
  };
  auto floats = [&](QueryTile tile) {  // of one part's partials
    return (tile.end - tile.begin) * a.group() * Partial::size(a.dim);
  };
  int64_t most_parts = 0, most_floats = 0;
  for (QueryTile tile : tiles) {
    most_parts = std::max(most_parts, parts(tile));
    most_floats = std::max(most_floats, floats(tile));
  }
  if (items >= MANY_ITEMS || most_parts == 1) {
    pool().run(items, 1, [&](int64_t item) {
      const QueryTile tile = tile_of(item);
      const int64_t kv_head = item / count;
      Scratch& scratch = scratch_for(a, tile, kv_head);
      std::vector<float>& partials = scratch.partials;
      partials.resize(std::max<size_t>(partials.size(), most_parts * most_floats));
      for (int64_t p = 0; p < parts(tile); ++p)
        attend(a, tile, kv_head, first(tile) + p, scratch, partials.data() + p * floats(tile));
      merge(a, tile, kv_head, parts(tile), partials.data());
    });
    return;
  }
  std::vector<float> partials(items * most_parts * most_floats);
  auto of = [&](int64_t item) { return partials.data() + item * most_parts * most_floats; };
  pool().run(items * most_parts, 1, [&](int64_t number) {
    const int64_t item = number / most_parts, p = number % most_parts;
    const QueryTile tile = tile_of(item);
    if (p >= parts(tile)) return;
    const int64_t kv_head = item / count;
    Scratch& scratch = scratch_for(a, tile, kv_head);
    attend(a, tile, kv_head, first(tile) + p, scratch, of(item) + p * floats(tile));
  });
  pool().run(items, 1, [&](int64_t item) {
    merge(a, tile_of(item), item / count, parts(tile_of(item)), of(item));
  });
}

}  // namespace
