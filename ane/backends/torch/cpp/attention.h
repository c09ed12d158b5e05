// Attention of a decoder's new columns over the caches of its lanes and their prefixes.

#pragma once

#include "vectors.h"

namespace {

// The arguments of attention; positions of the caches are (layer's) [lane or prefix][head][position][width].
struct Attention {
    long lanes, columns, heads, width, half;    // half: the caches are fp16, else float32
    const float *q, *k, *v;                     // of lane, column and head: strides in numbers
    long lane_stride, column_stride, head_stride;
    float* out;                                 // (lanes, columns, heads, width)
    const void *prefix_keys, *prefix_values;    // null: no prefix
    long prefix_capacity;
    const long *prefix_of, *prefix_lengths;     // by lane
    void *keys, *values;          // null: the lanes have no positions of their own, and k and v are not read
    long capacity;
    const long* lengths;                        // by lane: positions before the new columns
    float* recorded;                            // (lanes, heads, recorded_positions): the last column's scores of
    long recorded_positions;                    // its prefix, or of its lane if it has none; null: not wanted
    float scale;
};

template <bool HALF>
inline __m512 load(const void* cache, long at, __mmask16 mask) {
    if (HALF) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(cache) + at));
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(cache) + at);
}

template <bool HALF>
inline void store(void* cache, long at, __mmask16 mask, __m512 value) {
    if (HALF) value = _mm512_max_ps(_mm512_set1_ps(-65504.0f), _mm512_min_ps(_mm512_set1_ps(65504.0f), value));    // or NaN
    if (HALF)
        _mm256_mask_storeu_epi16(static_cast<uint16_t*>(cache) + at, mask,
                                 _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    else
        _mm512_mask_storeu_ps(static_cast<float*>(cache) + at, mask, value);
}

constexpr long AHEAD = 1024;      // bytes that are fetched ahead: processors stop at the end of a page of 4096

inline __m512 sums_of_pairs(__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }

// A cache of one head: numbers of `width` floats or halves, the last of VECTORS vectors in part.
template <bool HALF, int VECTORS>
struct Head {
    const void* cache;
    long at, width;         // of its first position; numbers of a position

    __mmask16 mask(int part) const { return part + 1 < VECTORS ? first(COLUMNS) : first(width - part * COLUMNS); }
    __m512 vector(long position, int part) const {
        return load<HALF>(cache, at + position * width + part * COLUMNS, mask(part));
    }
    void prefetch(long position) const {
        const char* ahead = static_cast<const char*>(cache) + (at + position * width) * (HALF ? 2 : 4) + AHEAD;
        for (long byte = 0; byte < VECTORS * COLUMNS * (HALF ? 2 : 4); byte += 64) _mm_prefetch(ahead + byte, _MM_HINT_T0);
    }
};

// Scores of `count` positions, q already scaled: the sums of 16 vectors at a time, by a tree.
template <bool HALF, int VECTORS>
void score(const __m512* q, Head<HALF, VECTORS> keys, long count, float* scores) {
    for (long start = 0; start < count; start += COLUMNS) {
        __m512 found[COLUMNS];
        #pragma GCC unroll 16
        for (long i = 0; i < COLUMNS; i++) {
            found[i] = _mm512_setzero_ps();
            if (start + i >= count) continue;
            keys.prefetch(start + i);
            for (int part = 0; part < VECTORS; part++)
                found[i] = _mm512_fmadd_ps(q[part], keys.vector(start + i, part), found[i]);
        }
        __m512 fours[4];
        for (int i = 0; i < 4; i++) {
            const __m512d left = _mm512_castps_pd(sums_of_pairs(found[4 * i], found[4 * i + 1]));
            const __m512d right = _mm512_castps_pd(sums_of_pairs(found[4 * i + 2], found[4 * i + 3]));
            fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(left, right)),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(left, right)));
        }
        for (int width = 2; width; width /= 2)
            for (int i = 0; i < width; i++)
                fours[i] = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                                         _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
        _mm512_mask_storeu_ps(scores + start, first(count - start), fours[0]);
    }
}

template <bool HALF, int VECTORS>
void add_values(const float* weights, Head<HALF, VECTORS> values, long count, __m512* total) {
    __m512 sums[VECTORS];
    std::copy(total, total + VECTORS, sums);
    for (long position = 0; position < count; position++) {
        values.prefetch(position);
        for (int part = 0; part < VECTORS; part++)
            sums[part] = _mm512_fmadd_ps(_mm512_set1_ps(weights[position]), values.vector(position, part), sums[part]);
    }
    std::copy(sums, sums + VECTORS, total);
}

// Weights of a softmax, before their sum divides them; returns one over the sum.
inline __m512 softmax(float* scores, long count) {
    __m512 most = _mm512_set1_ps(scores[0]), sum = _mm512_setzero_ps();
    for (long i = 0; i < count; i += COLUMNS)
        most = _mm512_mask_max_ps(most, first(count - i), most, _mm512_loadu_ps(scores + i));
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (long i = 0; i < count; i += COLUMNS) {
        const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), most));
        const __m512 kept = _mm512_maskz_mov_ps(first(count - i), weight);
        sum = _mm512_add_ps(sum, kept);
        _mm512_storeu_ps(scores + i, kept);
    }
    return _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sum));
}

template <bool HALF, int VECTORS>
void attend_head(const Attention& call, long lane, long head, float* scores) {
    const long width = call.width, before = call.keys ? call.lengths[lane] : 0;
    const long prefix = call.prefix_keys ? call.prefix_lengths[lane] : 0;
    const long shared = prefix ? (call.prefix_of[lane] * call.heads + head) * call.prefix_capacity * width : 0;
    const long own = (lane * call.heads + head) * call.capacity * width;
    const Head<HALF, VECTORS> prefix_keys{call.prefix_keys, shared, width}, keys{call.keys, own, width};
    const Head<HALF, VECTORS> prefix_values{call.prefix_values, shared, width}, values{call.values, own, width};
    for (long column = 0; column < call.columns; column++) {
        const long at = lane * call.lane_stride + column * call.column_stride + head * call.head_stride;
        const long new_at = own + (before + column) * width, length = call.keys ? before + column + 1 : 0;
        __m512 q[VECTORS], sums[VECTORS];
        for (int part = 0; part < VECTORS; part++) {
            const long offset = part * COLUMNS;
            const __mmask16 mask = keys.mask(part);
            if (length) {
                store<HALF>(call.keys, new_at + offset, mask, _mm512_maskz_loadu_ps(mask, call.k + at + offset));
                store<HALF>(call.values, new_at + offset, mask, _mm512_maskz_loadu_ps(mask, call.v + at + offset));
            }
            q[part] = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, call.q + at + offset), _mm512_set1_ps(call.scale));
            sums[part] = _mm512_setzero_ps();
        }
        score<HALF, VECTORS>(q, prefix_keys, prefix, scores);
        score<HALF, VECTORS>(q, keys, length, scores + prefix);
        if (call.recorded && column == call.columns - 1)
            std::memcpy(call.recorded + (lane * call.heads + head) * call.recorded_positions, scores,
                        (call.prefix_keys ? prefix : length) * sizeof(float));
        const __m512 share = softmax(scores, prefix + length);
        add_values<HALF, VECTORS>(scores, prefix_values, prefix, sums);
        add_values<HALF, VECTORS>(scores + prefix, values, length, sums);
        float* out = call.out + ((lane * call.columns + column) * call.heads + head) * width;
        for (int part = 0; part < VECTORS; part++)
            _mm512_mask_storeu_ps(out + part * COLUMNS, keys.mask(part), _mm512_mul_ps(sums[part], share));
    }
}

template <int VECTORS>
int attend_with(const Attention& call, int threads) {
    long most = 0;
    for (long lane = 0; lane < call.lanes; lane++)
        most = std::max(most, (call.keys ? call.lengths[lane] + call.columns : 0) + (call.prefix_keys ? call.prefix_lengths[lane] : 0));
    const long row_size = (most + 2 * COLUMNS) / COLUMNS * COLUMNS, tasks = call.lanes * call.heads;
    float* scores = reinterpret_cast<float*>(scratch.reserve(threads * row_size * sizeof(float)));
    if (!scores) return NO_MEMORY;
    // heads outside: lanes of one prefix read its head one after the other, from the caches of the core
    #pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long task = 0; task < tasks; task++) {
        float* own_scores = scores + omp_get_thread_num() * row_size;
        if (call.half) attend_head<true, VECTORS>(call, task % call.lanes, task / call.lanes, own_scores);
        else attend_head<false, VECTORS>(call, task % call.lanes, task / call.lanes, own_scores);
    }
    return 0;
}

int attend(const Attention& call, int threads) {
    switch ((call.width + COLUMNS - 1) / COLUMNS) {
        case 1: return attend_with<1>(call, threads);
        case 2: return attend_with<2>(call, threads);
        case 3: return attend_with<3>(call, threads);
        case 4: return attend_with<4>(call, threads);
        case 5: return attend_with<5>(call, threads);
        case 6: return attend_with<6>(call, threads);
        case 7: return attend_with<7>(call, threads);
        case 8: return attend_with<8>(call, threads);
        default: return TOO_WIDE;
    }
}

}  // namespace
