// What all kernels share: vectors of 16 floats, memory that is kept, tiles of AMX.

#pragma once

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

namespace {

constexpr long COLUMNS = 16;      // floats of a vector, and outputs of a block of weights
constexpr long PAIR = 2 * COLUMNS;
constexpr long TILE_ROWS = 16;    // of AMX
constexpr long TILE_BYTES = 64;   // of a row of a tile

constexpr int NO_MEMORY = 1, TOO_WIDE = 2;      // a head of more than 128 numbers

// Memory of a thread that calls, kept for its next calls.
struct Scratch {
    char* data = nullptr;
    size_t size = 0;
    ~Scratch() { operator delete(data, std::align_val_t(64)); }
    // Null when memory has run out.
    char* reserve(size_t bytes) {
        if (bytes > size) {
            operator delete(data, std::align_val_t(64));
            data = static_cast<char*>(operator new(bytes, std::align_val_t(64), std::nothrow));
            size = data ? bytes : 0;
        }
        return data;
    }
};
thread_local Scratch scratch, activations;

inline __mmask16 first(long count) { return static_cast<__mmask16>((1u << std::min(count, COLUMNS)) - 1); }

// e^x, relative error 2e-7: x = n ln 2 + r, e^r by its Taylor series to the sixth power (|r| ≤ 0.35).
inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), _mm512_min_ps(_mm512_set1_ps(104.0f), x));      // of NaN: NaN
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.0f / 720);
    for (float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(term));
    return _mm512_scalef_ps(y, n);
}

// x / (1 + e^-x).
inline __m512 silu(__m512 x) {
    const __m512 e = exponential(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

// GELU by tanh: x / (1 + e^(-2u)), u = √(2/π) (x + 0.044715 x³). NaN stays NaN.
inline __m512 gelu(__m512 x) {
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    const __m512 u = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
    const __m512 e = exponential(_mm512_mul_ps(u, _mm512_set1_ps(-1.59576912f)));
    return _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

// The exact GELU, x Φ(x), to 1e-7 |x|: erfc by formula 7.1.26 of Abramowitz and Stegun. NaN stays NaN.
inline __m512 exact_gelu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 y = _mm512_set1_ps(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f})
        y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(term));
    const __m512 e = exponential(_mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), z), z));
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(y, e), _mm512_set1_ps(0.5f));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(x, _mm512_mask_blend_ps(negative, _mm512_sub_ps(one, tail), tail));
}

// The configuration of AMX's tiles (Intel's manual, LDTILECFG).
struct alignas(64) Tiles {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    // Of a product of so many rows, or of any number; tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
    explicit Tiles(long count = 2 * TILE_ROWS) {
        for (int tile = 0; tile < 8; tile++) {
            const bool second = tile == 2 || tile == 3 || tile == 5;
            bytes[tile] = TILE_BYTES;
            rows[tile] = tile > 5 || count > 2 * TILE_ROWS ? TILE_ROWS
                : second ? std::max(count - TILE_ROWS, 1L) : std::min(count, TILE_ROWS);
        }
    }
};

// Configures the thread's tiles of AMX until it is destroyed, if `needed`.
struct TileScope {
    const bool needed;
    explicit TileScope(bool needed = true, const Tiles& tiles = Tiles()) : needed(needed) {
        asm volatile("" : : "r"(&tiles) : "memory");    // GCC takes the intrinsic to read 8 bytes only
        if (needed) _tile_loadconfig(&tiles);
    }
    ~TileScope() {
        if (needed) _tile_release();
    }
};

}  // namespace
