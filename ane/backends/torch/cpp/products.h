// Products of rows with two blocks of 16 columns, by AMX or by vectors: one layout of both factors, two sets of instructions.

#pragma once

#include "vectors.h"

namespace {

enum Kind : long { INT8 = 0, BF16 = 1, FP16 = 2, FP32 = 3 };

template <Kind KIND>
constexpr long ACTIVATION_BYTES = KIND == INT8 ? 1 : KIND == BF16 ? 2 : 4;
template <Kind KIND>
constexpr long GROUP = KIND == FP16 ? 32 : 64;      // bytes of weights, of 16 columns, that 4 bytes of a row multiply
template <Kind KIND>
constexpr long WHOLE_TILE = COLUMNS * GROUP<KIND>;  // that 64 bytes of a row multiply

constexpr long TILES_AHEAD = 4;

// Up to 32 rows, and two blocks of weights.
struct Factors {
    const char* rows;
    long stride, count;         // bytes from row to row; the next tap begins a row later
    const char *left, *right;
    long taps, tiles;           // tiles of a tap
};

inline void fetch_tile(const char* tile) {
    for (long byte = 0; byte < COLUMNS * TILE_BYTES; byte += 64) _mm_prefetch(tile + byte, _MM_HINT_T0);
}

// Sums (32, `width`): the rows' products with `left` and `right` in 16 columns each, integers of INT8, else floats.
// `prefetch`: weights come from memory; they are fetched TILES_AHEAD tiles before they are multiplied.
template <Kind KIND>
void multiply_by_amx(const Factors& factors, bool prefetch, int32_t* sums, long width) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long i = 0; i < factors.taps * factors.tiles; i++) {
        const char *a = factors.left + i * WHOLE_TILE<KIND>, *b = factors.right + i * WHOLE_TILE<KIND>;
        const char* upper = factors.rows + i / factors.tiles * factors.stride + i % factors.tiles * TILE_BYTES;
        if (prefetch) {
            fetch_tile(a + TILES_AHEAD * WHOLE_TILE<KIND>);
            fetch_tile(b + TILES_AHEAD * WHOLE_TILE<KIND>);
        }
        _tile_loadd(6, a, TILE_BYTES);
        _tile_loadd(7, b, TILE_BYTES);
        _tile_loadd(4, upper, factors.stride);
        if (KIND == INT8) {
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (factors.count <= TILE_ROWS) continue;
        _tile_loadd(5, upper + TILE_ROWS * factors.stride, factors.stride);
        if (KIND == INT8) {
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        } else {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    const long bytes = width * sizeof(int32_t);
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + COLUMNS, bytes);
    if (factors.count <= TILE_ROWS) return;
    _tile_stored(2, sums + TILE_ROWS * width, bytes);
    _tile_stored(3, sums + TILE_ROWS * width + COLUMNS, bytes);
}

template <Kind KIND>
inline __m512i weights_at(const char* at) {
    if (KIND == FP16) return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
    return _mm512_loadu_si512(at);
}

template <Kind KIND>
inline __m512i add_product(__m512i sum, __m512i weights, __m512i x) {
    if (KIND == INT8) return _mm512_dpbusd_epi32(sum, x, weights);
    if (KIND == BF16)
        return _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(sum), reinterpret_cast<__m512bh>(x),
                                                    reinterpret_cast<__m512bh>(weights)));
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(weights), _mm512_castsi512_ps(sum)));
}

// Adds the products of COUNT rows with `groups` groups of weights to their sums, or begins these. Rows are unrolled, so that
// the sums stay in registers: otherwise it takes twice as long.
template <Kind KIND, int COUNT>
inline void add_products(const char* rows, long stride, const char* left, const char* right, long groups, bool begins,
                         int32_t* sums, long width) {
    __m512i own[COUNT][2];
    #pragma GCC unroll 8
    for (int i = 0; i < COUNT; i++)
        for (int half = 0; half < 2; half++)
            own[i][half] = begins ? _mm512_setzero_si512() : _mm512_loadu_si512(sums + i * width + half * COLUMNS);
    for (long group = 0; group < groups; group++) {
        const __m512i a = weights_at<KIND>(left + group * GROUP<KIND>), b = weights_at<KIND>(right + group * GROUP<KIND>);
        #pragma GCC unroll 8
        for (int i = 0; i < COUNT; i++) {
            int32_t four;
            std::memcpy(&four, rows + i * stride + 4 * group, sizeof four);
            const __m512i x = _mm512_set1_epi32(four);
            own[i][0] = add_product<KIND>(own[i][0], a, x), own[i][1] = add_product<KIND>(own[i][1], b, x);
        }
    }
    #pragma GCC unroll 8
    for (int i = 0; i < COUNT; i++)
        for (int half = 0; half < 2; half++) _mm512_storeu_si512(sums + i * width + half * COLUMNS, own[i][half]);
}

// The same by vectors. Each sum is a chain of its own over the inputs, whatever the rows beside it. Processors fetch the
// weights ahead by themselves: fetching them here made a step of a decoder 12 to 17 % longer on an EPYC.
template <Kind KIND>
void multiply_by_vectors(const Factors& factors, int32_t* sums, long width) {
    const long groups = factors.tiles * COLUMNS;
    const auto add = [&](auto count, long row) {
        for (long tap = 0; tap < factors.taps; tap++)
            add_products<KIND, decltype(count)::value>(
                factors.rows + (row + tap) * factors.stride, factors.stride, factors.left + tap * groups * GROUP<KIND>,
                factors.right + tap * groups * GROUP<KIND>, groups, !tap, sums + row * width, width);
    };
    long row = 0;
    for (; factors.count - row >= 8; row += 8) add(std::integral_constant<int, 8>(), row);
    for (; factors.count - row >= 4; row += 4) add(std::integral_constant<int, 4>(), row);
    for (; factors.count - row >= 2; row += 2) add(std::integral_constant<int, 2>(), row);
    if (row < factors.count) add(std::integral_constant<int, 1>(), row);
}

template <Kind KIND>
inline void multiply(bool amx, const Factors& factors, bool prefetch, int32_t* sums, long width) {
    if constexpr (KIND == INT8 || KIND == BF16)
        if (amx) return multiply_by_amx<KIND>(factors, prefetch, sums, width);
    multiply_by_vectors<KIND>(factors, sums, width);
}

}  // namespace
