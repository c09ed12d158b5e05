// Layers of a denoiser over packed frames: (frames, channels), the rows of all utterances one after another.
//
// A frame's numbers depend on nothing but its row: not on the rows beside it, on threads or on alignment.

#pragma once

#include <numeric>

#include "linear.h"

namespace {

constexpr long CHANNELS = 64;           // of a task of find_moments
constexpr long FEWEST_PRODUCTS = 1 << 23;       // of a layer that several threads share

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

// FrameAttention. biases: (heads, 2 · longest - 1), to add to scores, times log2(e) because weights are powers of two;
// number j is for q - k = longest - 1 - j.
struct FrameAttention {
    GroupNorm norm;
    const Layer *qkv, *projection;
    long heads;
    const float* biases;
    long longest;
};

// A norm as x · gain + offset for each row and channel, then SiLU if `silu`.
struct Scaling {
    float *gains, *offsets;
    bool silu;
};

// Memory of a call. Rounded frames lie in slots, those of a row between slots of zeros, from which convolutions read.
struct Workspace {
    Frames frames;
    long slots;
    long *frame_of, *row_of;                    // by slot; -1: zeros
    Rows rounded;
    float* normed;                              // of each thread, `normed_floats` numbers
    long normed_floats;
    float *means, *variances;                   // (rows, channels)
    Scaling scaling;

    // Allocates for layers of `channels` inputs; false when memory has run out.
    bool prepare(const Frames& packed, long channels, int threads) {
        frames = packed;
        slots = frames.count() + frames.rows + 1;
        const long padded = slots + 2 * PAIR, moments = (frames.rows * channels + COLUMNS) / COLUMNS * COLUMNS;
        normed_floats = (channels + CHANNELS) / COLUMNS * COLUMNS;
        rounded.stride = (channels + CHANNELS) / PAIR * PAIR * 2 + TILE_BYTES;      // bytes of BF16; INT8 has half
        const long floats = 4 * moments + threads * normed_floats + 2 * padded;
        char* memory = scratch.reserve(padded * rounded.stride + floats * sizeof(float) + 2 * padded * sizeof(long));
        if (!memory) return false;
        rounded.values = memory;
        means = reinterpret_cast<float*>(memory + padded * rounded.stride);
        variances = means + moments, scaling.gains = variances + moments, scaling.offsets = scaling.gains + moments;
        normed = scaling.offsets + moments;
        rounded.low = normed + threads * normed_floats, rounded.span = rounded.low + padded;
        frame_of = reinterpret_cast<long*>(rounded.span + padded), row_of = frame_of + padded;
        std::fill(frame_of, frame_of + padded, -1L);
        for (long row = 0, slot = 1, frame = 0; row < frames.rows; row++, slot++)
            for (long i = 0; i < frames.lengths[row]; i++, slot++) frame_of[slot] = frame++, row_of[slot] = row;
        return true;
    }
};

// The functions below are called by all threads of a region, and return when all have done their part.

// Mean and variance of each channel in each row: the mean first, of distances from the first frame, so that a channel
// that hardly varies keeps its digits.
void find_moments(const Workspace& work, const float* x, long channels) {
    constexpr int VECTORS = CHANNELS / COLUMNS;
    const long parts = (channels + CHANNELS - 1) / CHANNELS;
    #pragma omp for schedule(dynamic)
    for (long task = 0; task < work.frames.rows * parts; task++) {
        const long row = task / parts, start = task % parts * CHANNELS, length = work.frames.lengths[row];
        const float* frame = x + work.frames.before(row) * channels + start;
        const __m512 share = _mm512_set1_ps(1.0f / length);
        __m512 centre[VECTORS], sum[VECTORS];
        __mmask16 masks[VECTORS];
        for (int part = 0; part < VECTORS; part++) {
            const long left = channels - start - part * COLUMNS;
            masks[part] = left > 0 ? first(left) : 0;
            centre[part] = _mm512_maskz_loadu_ps(masks[part], frame + part * COLUMNS);
        }
        for (const bool variance : {false, true}) {
            for (int part = 0; part < VECTORS; part++) sum[part] = _mm512_setzero_ps();
            for (long i = 0; i < length; i++)
                for (int part = 0; part < VECTORS; part++) {
                    const float* at = frame + i * channels + part * COLUMNS;
                    _mm_prefetch(reinterpret_cast<const char*>(at + 8 * channels), _MM_HINT_T0);
                    const __m512 distance = _mm512_sub_ps(_mm512_maskz_loadu_ps(masks[part], at), centre[part]);
                    sum[part] = variance ? _mm512_fmadd_ps(distance, distance, sum[part]) : _mm512_add_ps(sum[part], distance);
                }
            for (int part = 0; part < VECTORS; part++) {
                const __m512 mean = _mm512_mul_ps(sum[part], share);
                const long at = row * channels + start + part * COLUMNS;
                if (variance) {
                    _mm512_mask_storeu_ps(work.variances + at, masks[part], mean);
                } else {
                    centre[part] = _mm512_add_ps(centre[part], mean);
                    _mm512_mask_storeu_ps(work.means + at, masks[part], centre[part]);
                }
            }
        }
    }
}

// The norm of each group, scaled by 1 + time[: channels] and shifted by time[channels :], as `work.scaling`; row r
// uses row r % times of time; null: neither.
void find_scaling(const Workspace& work, const float* x, const GroupNorm& norm, long channels, const float* time, long times) {
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
            variance += work.variances[at + i] + distance * distance;
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
    uint16_t* rounded;
};

// The layer of x, scaled or as it is.
template <Kind KIND>
void multiply_frames(const Workspace& work, const Layer& layer, const float* x, const Scaling* scaling, const FrameOutput& output) {
    const Rows& rows = work.rounded;
    const long inputs = layer.inputs, outputs = layer.outputs, reach = layer.taps / 2;
    #pragma omp for schedule(static)
    for (long slot = 0; slot < work.slots; slot++) {
        const long frame = work.frame_of[slot];
        if (frame < 0) {
            std::memset(rows.values + slot * rows.stride, 0, rows.stride);
            rows.low[slot] = rows.span[slot] = 0;
            continue;
        }
        const float* from = x + frame * inputs;
        if (scaling) {
            float* normed = work.normed + omp_get_thread_num() * work.normed_floats;
            const float *gains = scaling->gains + work.row_of[slot] * inputs;
            const float *offsets = scaling->offsets + work.row_of[slot] * inputs;
            for (long i = 0; i < inputs; i += COLUMNS) {
                const __mmask16 mask = first(inputs - i);
                const __m512 y = _mm512_fmadd_ps(
                    _mm512_maskz_loadu_ps(mask, from + i), _mm512_maskz_loadu_ps(mask, gains + i),
                    _mm512_maskz_loadu_ps(mask, offsets + i));
                _mm512_mask_storeu_ps(normed + i, mask, scaling->silu ? silu(y) : y);
            }
            from = normed;
        }
        round_row(layer, from, rows, slot);
    }
    const long pairs = (outputs + PAIR - 1) / PAIR, chunks = (work.slots + CHUNK - 1) / CHUNK;
    #pragma omp for schedule(dynamic, 2)
    for (long task = 0; task < chunks * pairs; task++) {
        const long end = std::min((task / pairs + 1) * CHUNK, work.slots), pair = task % pairs;
        alignas(64) float totals[2 * TILE_ROWS][PAIR];      // INT8: of the taps before, each with its row's range
        for (long slot = std::max(task / pairs * CHUNK, 1L); slot < end; slot += 2 * TILE_ROWS) {
            const auto emit = [&](long i, long column, long tap, __m512 sum) {
                const long frame = work.frame_of[slot + i];
                if (frame < 0) return;
                const __mmask16 mask = first(outputs - column);
                float* total = totals[i] + column - pair * PAIR;
                __m512 y = KIND == INT8 && tap ? _mm512_load_ps(total) : _mm512_maskz_loadu_ps(mask, layer.bias + column);
                if (KIND == INT8) {
                    const long source = slot + i + tap - reach;
                    y = add_integers(layer, tap * outputs + column, column, rows.low[source], rows.span[source], sum, y);
                    if (tap + 1 < layer.taps) return _mm512_store_ps(total, y);
                } else {
                    y = _mm512_add_ps(y, sum);
                }
                const long at = frame * outputs + column;
                if (output.rounded) return _mm256_mask_storeu_epi16(
                    output.rounded + at, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(y)));
                if (output.added) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, output.added + at));
                _mm512_mask_storeu_ps(output.out + at, mask, y);
            };
            multiply_pair<KIND>(layer, rows, slot - reach, std::min(end - slot, 2 * TILE_ROWS), pair, false, emit);
        }
    }
}

void frame_layer(const Workspace& work, const Layer& layer, const float* x, const Scaling* scaling, const FrameOutput& output) {
    if (layer.kind == INT8) multiply_frames<INT8>(work, layer, x, scaling, output);
    else multiply_frames<BF16>(work, layer, x, scaling, output);
}

}  // namespace
