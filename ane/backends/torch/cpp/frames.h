// Layers of a denoiser over packed frames, by AMX: (frames, channels), the rows of all utterances one after another.
//
// A frame's numbers depend on nothing but its row: not on the rows beside it, on threads or on alignment.

#pragma once

#include <numeric>

#include "linear.h"

namespace {

constexpr long CHANNELS = 64;           // whose moments are one task
constexpr long FEWEST_PRODUCTS = 1 << 23;       // of a layer, that several threads share

// Rows of frames, packed.
struct Frames {
    long rows;
    const long* lengths;        // by row

    long before(long row) const { return std::accumulate(lengths, lengths + row, 0L); }
    long count() const { return before(rows); }
    long longest() const { return *std::max_element(lengths, lengths + rows); }
};

struct GroupNorm {
    const float *weight, *bias;
    long groups;
    float epsilon;
};

// TimestepResBlock: norm, SiLU, layer, norm that the timestep scales and shifts, SiLU, convolution.
struct Residual {
    GroupNorm first_norm, second_norm;
    const Layer *first, *time, *second;
};

// FrameAttention. biases: (heads, 2 · longest - 1), to add to scores, · log2 e, for q - k from longest - 1 down.
struct FrameAttention {
    GroupNorm norm;
    const Layer *qkv, *projection;
    long heads;
    const float* biases;
    long longest;
};

// x · gain + offset by row and channel, then SiLU; what a norm comes down to.
struct Scaling {
    float *gains, *offsets;
    bool silu;
};

// What a call of threads works with: rounded rows lie between rows of zeros, from which convolutions read.
struct Work {
    Frames frames;
    long places;                                // of rounded rows
    long *frame_of, *row_of;                    // by place; -1: zeros
    Rows rounded;
    float* normed;                              // of each thread, `room` numbers
    long room;
    float *means, *squares;                     // (rows, channels)
    Scaling scaling;

    // Memory for layers of so many inputs, or false.
    bool prepare(const Frames& packed, long channels, int threads) {
        frames = packed;
        places = frames.count() + frames.rows + 1;
        const long padded = places + 2 * PAIR, moments = (frames.rows * channels + COLUMNS) / COLUMNS * COLUMNS;
        room = (channels + CHANNELS) / COLUMNS * COLUMNS;
        rounded.stride = (channels + CHANNELS) / PAIR * PAIR * 2 + TILE_BYTES;      // bytes of BF16; INT8 has half
        const long floats = 4 * moments + threads * room + 2 * padded;
        char* memory = scratch.of(padded * rounded.stride + floats * sizeof(float) + 2 * padded * sizeof(long));
        if (!memory) return false;
        rounded.values = memory;
        means = reinterpret_cast<float*>(memory + padded * rounded.stride);
        squares = means + moments, scaling.gains = squares + moments, scaling.offsets = scaling.gains + moments;
        normed = scaling.offsets + moments;
        rounded.low = normed + threads * room, rounded.span = rounded.low + padded;
        frame_of = reinterpret_cast<long*>(rounded.span + padded), row_of = frame_of + padded;
        std::fill(frame_of, frame_of + padded, -1L);
        for (long row = 0, place = 1, frame = 0; row < frames.rows; row++, place++)
            for (long i = 0; i < frames.lengths[row]; i++, place++) frame_of[place] = frame++, row_of[place] = row;
        return true;
    }
};

inline __m512 silu(__m512 x) {
    const __m512 e = exponential(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

// The functions below are called by all threads of a region, and return when all have done their part.

// Mean and variance of each channel in each row. Its first frame is subtracted before: a channel that hardly varies
// keeps its digits.
void find_moments(const Work& work, const float* x, long channels) {
    const long parts = (channels + CHANNELS - 1) / CHANNELS;
    #pragma omp for schedule(dynamic)
    for (long task = 0; task < work.frames.rows * parts; task++) {
        const long row = task / parts, start = task % parts * CHANNELS, length = work.frames.lengths[row];
        const float* frame = x + work.frames.before(row) * channels + start;
        constexpr int VECTORS = CHANNELS / COLUMNS;
        __m512 shift[VECTORS], sum[VECTORS], squares[VECTORS];
        __mmask16 masks[VECTORS];
        for (int part = 0; part < VECTORS; part++) {
            const long left = channels - start - part * COLUMNS;
            masks[part] = left > 0 ? first(left) : 0;
            shift[part] = _mm512_maskz_loadu_ps(masks[part], frame + part * COLUMNS);
            sum[part] = squares[part] = _mm512_setzero_ps();
        }
        for (long i = 1; i < length; i++)
            for (int part = 0; part < VECTORS; part++) {
                const float* at = frame + i * channels + part * COLUMNS;
                _mm_prefetch(reinterpret_cast<const char*>(at + 8 * channels), _MM_HINT_T0);
                const __m512 moved = _mm512_sub_ps(_mm512_maskz_loadu_ps(masks[part], at), shift[part]);
                sum[part] = _mm512_add_ps(sum[part], moved);
                squares[part] = _mm512_fmadd_ps(moved, moved, squares[part]);
            }
        const __m512 share = _mm512_set1_ps(1.0f / length);
        for (int part = 0; part < VECTORS; part++) {
            const __m512 mean = _mm512_mul_ps(sum[part], share);
            const long at = row * channels + start + part * COLUMNS;
            _mm512_mask_storeu_ps(work.means + at, masks[part], _mm512_add_ps(shift[part], mean));
            _mm512_mask_storeu_ps(work.squares + at, masks[part],
                                  _mm512_fnmadd_ps(mean, mean, _mm512_mul_ps(squares[part], share)));
        }
    }
}

// The norm of each group, scaled by 1 + time[: channels] and shifted by time[channels :], as `work.scaling`; time has
// `times` rows, one for all or in turn; null: neither.
void find_scaling(const Work& work, const float* x, const GroupNorm& norm, long channels, const float* time, long times) {
    find_moments(work, x, channels);
    const long members = channels / norm.groups;
    #pragma omp for schedule(static)
    for (long task = 0; task < work.frames.rows * norm.groups; task++) {
        const long row = task / norm.groups, start = task % norm.groups * members, at = row * channels + start;
        float mean = 0, variance = 0;
        for (long i = 0; i < members; i++) mean += work.means[at + i];
        mean /= members;
        for (long i = 0; i < members; i++) {
            const float distance = work.means[at + i] - mean;
            variance += work.squares[at + i] + distance * distance;
        }
        const float factor = 1.0f / __builtin_sqrtf(variance / members + norm.epsilon);
        const float* own = time ? time + row % times * 2 * channels + start : nullptr;
        for (long i = 0; i < members; i++) {
            float gain = norm.weight[start + i] * factor, offset = norm.bias[start + i] - mean * gain;
            if (own) gain *= 1 + own[i], offset = offset * (1 + own[i]) + own[channels + i];
            work.scaling.gains[at + i] = gain, work.scaling.offsets[at + i] = offset;
        }
    }
}

// Where a layer writes (frames, outputs): float32, plus `added` if that is not null; or else bfloat16.
struct FrameOutput {
    float* out;
    const float* added;
    uint16_t* halves;
};

// The layer of x, scaled or as it is.
template <Kind KIND>
void multiply(const Work& work, const Layer& layer, const float* x, const Scaling* scaling, const FrameOutput& output) {
    const Rows& rows = work.rounded;
    const long inputs = layer.inputs, outputs = layer.outputs, reach = layer.taps / 2;
    #pragma omp for schedule(static)
    for (long place = 0; place < work.places; place++) {
        const long frame = work.frame_of[place];
        if (frame < 0) {
            std::memset(rows.values + place * rows.stride, 0, rows.stride);
            rows.low[place] = rows.span[place] = 0;
            continue;
        }
        const float* from = x + frame * inputs;
        if (scaling) {
            float* normed = work.normed + omp_get_thread_num() * work.room;
            const float *gains = scaling->gains + work.row_of[place] * inputs;
            const float *offsets = scaling->offsets + work.row_of[place] * inputs;
            for (long i = 0; i < inputs; i += COLUMNS) {
                const __mmask16 mask = first(inputs - i);
                const __m512 y = _mm512_fmadd_ps(
                    _mm512_maskz_loadu_ps(mask, from + i), _mm512_maskz_loadu_ps(mask, gains + i),
                    _mm512_maskz_loadu_ps(mask, offsets + i));
                _mm512_mask_storeu_ps(normed + i, mask, scaling->silu ? silu(y) : y);
            }
            from = normed;
        }
        round_row(layer, from, rows, place);
    }
    const long pairs = (outputs + PAIR - 1) / PAIR, chunks = (work.places + CHUNK - 1) / CHUNK;
    #pragma omp for schedule(dynamic, 2)
    for (long task = 0; task < chunks * pairs; task++) {
        const long end = std::min((task / pairs + 1) * CHUNK, work.places), pair = task % pairs;
        alignas(64) float totals[2 * TILE_ROWS][PAIR];      // INT8: of the taps before, each with its row's range
        for (long place = std::max(task / pairs * CHUNK, 1L); place < end; place += 2 * TILE_ROWS) {
            const auto emit = [&](long i, long column, long tap, __m512 sum) {
                const long frame = work.frame_of[place + i];
                if (frame < 0) return;
                const __mmask16 mask = first(outputs - column);
                float* total = totals[i] + column - pair * PAIR;
                __m512 y = tap ? _mm512_load_ps(total) : _mm512_maskz_loadu_ps(mask, layer.bias + column);
                if (KIND == INT8) {
                    const long source = place + i + tap - reach;
                    y = _mm512_fmadd_ps(_mm512_set1_ps(rows.low[source]),
                                        _mm512_maskz_loadu_ps(mask, layer.sums + tap * outputs + column), y);
                    const __m512 scaled = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(mask, layer.scale + column));
                    y = _mm512_fmadd_ps(scaled, _mm512_set1_ps(rows.span[source]), y);
                    if (tap + 1 < layer.taps) return _mm512_store_ps(total, y);
                } else {
                    y = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, layer.bias + column), sum);
                }
                const long at = frame * outputs + column;
                if (output.halves) return _mm256_mask_storeu_epi16(
                    output.halves + at, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(y)));
                if (output.added) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, output.added + at));
                _mm512_mask_storeu_ps(output.out + at, mask, y);
            };
            pair_by_amx<KIND>(layer, rows, place - reach, std::min(end - place, 2 * TILE_ROWS), pair, emit);
        }
    }
}

void frame_layer(const Work& work, const Layer& layer, const float* x, const Scaling* scaling, const FrameOutput& output) {
    if (layer.kind == INT8) multiply<INT8>(work, layer, x, scaling, output);
    else multiply<BF16>(work, layer, x, scaling, output);
}

}  // namespace
