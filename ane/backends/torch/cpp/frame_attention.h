// Attention among the frames of a row, with a bias by distance, in bfloat16.

#pragma once

#include "products.h"

namespace {

// 16 rows of 16 numbers of 4 bytes, transposed.
inline void transpose(__m512i* rows) {
    __m512i pairs[COLUMNS], fours[COLUMNS], eights[COLUMNS];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
            fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            eights[i + j] = _mm512_shuffle_i32x4(fours[i + j], fours[i + j + 4], 0x88);
            eights[i + j + 4] = _mm512_shuffle_i32x4(fours[i + j], fours[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        rows[j] = _mm512_shuffle_i32x4(eights[j], eights[j + 8], 0x88);
        rows[j + 8] = _mm512_shuffle_i32x4(eights[j], eights[j + 8], 0xdd);
    }
}

// Indices that interleave 16 numbers of two vectors, from `start` on.
inline __m512i interleaved(short start) {
    alignas(64) uint16_t order[PAIR];
    for (short i = 0; i < COLUMNS; i++) order[2 * i] = start + i, order[2 * i + 1] = PAIR + start + i;
    return _mm512_load_si512(order);
}

// A head of a row of frames, and the memory of the thread that computes it.
struct FrameHead {
    const uint16_t* qkv;    // of the row's first frame: q, k and v of the head, in bfloat16
    long stride;            // to the next frame
    long length, width;
    const float* biases;    // times log2(e); number j is for q - k = length - 1 - j
    float* out;
    long out_stride;

    long padded_length() const { return (length + PAIR - 1) / PAIR * PAIR; }
    long padded_width() const { return (width + PAIR - 1) / PAIR * PAIR; }
    // 32 numbers of q, k or v (0, 1, 2) from `start` on; zeros beyond.
    __m512i part(long frame, long which, long start) const {
        if (frame >= length || start >= width) return _mm512_setzero_si512();
        const __mmask32 mask = static_cast<__mmask32>((1ull << std::min(width - start, PAIR)) - 1);
        return _mm512_maskz_loadu_epi16(mask, qkv + frame * stride + which * width + start);
    }
};

// Bytes of memory that a head needs.
inline long attention_bytes(long length, long width) {
    const long padded = (length + PAIR - 1) / PAIR * PAIR, wide = (width + PAIR - 1) / PAIR * PAIR;
    return 4 * padded * wide + PAIR * (2 * wide + 4 * padded + 2 * padded + TILE_BYTES + 4 * wide);
}

// Tiles of the two products: keys (16 keys, 32 of the width), values (16 of the width, 32 keys).
inline void pack_keys_and_values(const FrameHead& head, char* keys, char* values) {
    const long padded = head.padded_length(), wide = head.padded_width(), bytes = TILE_ROWS * TILE_BYTES;
    for (long start = 0; start < padded; start += COLUMNS)
        for (long at = 0; at < wide; at += PAIR) {
            __m512i rows[COLUMNS];
            for (long i = 0; i < COLUMNS; i++) rows[i] = head.part(start + i, 1, at);
            transpose(rows);
            char* tile = keys + (start / COLUMNS * (wide / PAIR) + at / PAIR) * bytes;
            for (long i = 0; i < COLUMNS; i++) _mm512_store_si512(tile + i * TILE_BYTES, rows[i]);
        }
    const __m512i left = interleaved(0), right = interleaved(COLUMNS);
    for (long at = 0; at < wide; at += PAIR)
        for (long start = 0; start < padded; start += 2) {
            const __m512i even = head.part(start, 2, at), odd = head.part(start + 1, 2, at);
            char* row = values + (at / COLUMNS * (padded / PAIR) + start / PAIR) * bytes + start % PAIR / 2 * TILE_BYTES;
            _mm512_store_si512(row, _mm512_permutex2var_epi16(even, left, odd));
            _mm512_store_si512(row + padded / PAIR * bytes, _mm512_permutex2var_epi16(even, right, odd));
        }
}

// 2^x for x ≤ 0 by its Taylor series, relative error 9e-5; weights are rounded to 2^-9.
inline __m512 power_of_two(__m512 x) {
    const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_set1_ps(1.3333558e-3f);
    for (float term : {9.6181291e-3f, 5.5504109e-2f, 0.24022651f, 0.69314718f, 1.0f})
        y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(term));
    return _mm512_scalef_ps(y, x);
}

// Scores of a query → weights in bfloat16, before their sum divides them; returns one over the sum.
inline float softmax_weights(const FrameHead& head, long query, float* scores, char* weights) {
    const __m512 scale = _mm512_set1_ps(1.44269504f / __builtin_sqrtf(head.width));
    const float* biases = head.biases + head.length - 1 - query;
    __m512 most = _mm512_set1_ps(-__builtin_inff()), sum = _mm512_setzero_ps();
    for (long key = 0; key < head.length; key += COLUMNS) {
        const __mmask16 mask = first(head.length - key);
        const __m512 score = _mm512_fmadd_ps(_mm512_loadu_ps(scores + key), scale, _mm512_maskz_loadu_ps(mask, biases + key));
        most = _mm512_mask_max_ps(most, mask, most, score);
        _mm512_storeu_ps(scores + key, score);
    }
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (long key = 0; key < head.padded_length(); key += COLUMNS) {
        const __mmask16 mask = key < head.length ? first(head.length - key) : 0;
        const __m512 weight = _mm512_maskz_mov_ps(mask, power_of_two(_mm512_sub_ps(_mm512_loadu_ps(scores + key), most)));
        sum = _mm512_add_ps(sum, weight);
        const __m256bh half = _mm512_cvtneps_pbh(weight);
        std::memcpy(weights + 2 * key, &half, sizeof half);
    }
    return 1.0f / _mm512_reduce_add_ps(sum);
}

void attend_to_frames(const FrameHead& head, bool amx, char* memory) {
    const long padded = head.padded_length(), wide = head.padded_width(), bytes = TILE_ROWS * TILE_BYTES;
    char *keys = memory, *values = keys + 2 * padded * wide, *queries = values + 2 * padded * wide;
    const long weight_stride = 2 * padded + TILE_BYTES;
    float* scores = reinterpret_cast<float*>(queries + PAIR * 2 * wide);
    char* weights = reinterpret_cast<char*>(scores + PAIR * padded);
    float* sums = reinterpret_cast<float*>(weights + PAIR * weight_stride);
    pack_keys_and_values(head, keys, values);
    for (long start = 0; start < head.length; start += PAIR) {
        const long count = std::min(head.length - start, PAIR);
        const auto product = [&](const char* rows, long stride, const char* tiles, long steps, float* out, long out_width) {
            multiply<BF16>(amx, {rows, stride, count, tiles, tiles + steps * bytes, 1, steps}, false,
                           reinterpret_cast<int32_t*>(out), out_width);
        };
        for (long i = 0; i < PAIR; i++)
            for (long at = 0; at < wide; at += PAIR)
                _mm512_store_si512(queries + (i * wide + at) * 2, head.part(start + i, 0, at));
        for (long key = 0; key < padded; key += PAIR)
            product(queries, 2 * wide, keys + key / COLUMNS * (wide / PAIR) * bytes, wide / PAIR, scores + key, padded);
        float shares[PAIR] = {};
        for (long i = 0; i < count; i++)
            shares[i] = softmax_weights(head, start + i, scores + i * padded, weights + i * weight_stride);
        for (long at = 0; at < wide; at += PAIR)
            product(weights, weight_stride, values + at / COLUMNS * (padded / PAIR) * bytes, padded / PAIR, sums + at, wide);
        for (long i = 0; i < count; i++)
            for (long at = 0; at < head.width; at += COLUMNS)
                _mm512_mask_storeu_ps(head.out + (start + i) * head.out_stride + at, first(head.width - at),
                                      _mm512_mul_ps(_mm512_loadu_ps(sums + i * wide + at), _mm512_set1_ps(shares[i])));
    }
}

}  // namespace
