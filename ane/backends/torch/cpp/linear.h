// Linear layers with packed weights.

#pragma once

#include "products.h"

namespace {

constexpr long CHUNK = 512;                 // rows whose products follow each other: they stay in the core's cache
constexpr long FEWEST_WEIGHTS = 1 << 16;    // that several threads multiply with: a wait for another costs microseconds

enum Gelu : long { NONE = 0, BY_TANH = 1, EXACT = 2 };

// The arguments of a linear layer; kernels.py declares the same fields.
struct Layer {
    long kind, inputs, padded_inputs, outputs, taps, amx, gelu;       // taps: of a convolution over frames; else 1
    const void* weights;          // (outputs / 16, taps · inputs / g, 16, g), g numbers of 4 bytes; FP16, FP32: g = 1
    const float* bias;
    const float* scale;           // INT8: of a unit of an activation's range
    const float* sums;            // INT8: (taps, outputs), of each output's weights
    const float* norm_weight;     // of a LayerNorm of the inputs; null: none
    const float* norm_bias;
    float epsilon;
};

// Rows of activations as the products take them.
struct Rows {
    char* values;       // (rows padded to those of a tile, stride bytes)
    long stride;
    float *low, *span;  // INT8: by row
};

// LayerNorm of the inputs.
void norm_row(const Layer& layer, const float* x, float* normed) {
    const long inputs = layer.inputs;
    __m512 sum = _mm512_setzero_ps(), squares = sum;
    for (long i = 0; i < inputs; i += COLUMNS) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(first(inputs - i), x + i));
    const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / inputs);
    for (long i = 0; i < inputs; i += COLUMNS) {
        const __mmask16 mask = first(inputs - i);
        const __m512 centred = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, x + i), mean);
        squares = _mm512_fmadd_ps(centred, centred, squares);
    }
    const __m512 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / inputs + layer.epsilon));
    for (long i = 0; i < inputs; i += COLUMNS) {
        const __mmask16 mask = first(inputs - i);
        const __m512 centred = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean);
        _mm512_mask_storeu_ps(normed + i, mask, _mm512_fmadd_ps(
            _mm512_mul_ps(centred, factor), _mm512_maskz_loadu_ps(mask, layer.norm_weight + i),
            _mm512_maskz_loadu_ps(mask, layer.norm_bias + i)));
    }
}

void round_row(const Layer& layer, const float* x, Rows rows, long row) {
    const long inputs = layer.inputs;
    char* out = rows.values + row * rows.stride;
    if (layer.kind == FP16 || layer.kind == FP32) {
        std::memcpy(out, x, inputs * sizeof(float));
        std::memset(out + inputs * sizeof(float), 0, (layer.padded_inputs - inputs) * sizeof(float));
        return;
    }
    if (layer.kind == BF16) {
        for (long i = 0; i < layer.padded_inputs; i += COLUMNS) {
            const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(i < inputs ? first(inputs - i) : 0, x + i));
            std::memcpy(out + 2 * i, &half, sizeof half);
        }
        return;
    }
    __m512 low = _mm512_set1_ps(x[0]), high = low;
    __mmask16 unordered = 0;
    for (long i = 0; i < inputs; i += COLUMNS) {
        const __m512 value = _mm512_mask_loadu_ps(_mm512_set1_ps(x[0]), first(inputs - i), x + i);
        low = _mm512_min_ps(low, value), high = _mm512_max_ps(high, value);
        unordered |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    }
    const float least = _mm512_reduce_min_ps(low), span = std::max(_mm512_reduce_max_ps(high) - least, 1e-18f);
    rows.low[row] = unordered ? __builtin_nanf("") : least;
    rows.span[row] = span;
    const __m512 offset = _mm512_set1_ps(least), steps = _mm512_set1_ps(255.0f / span);
    for (long i = 0; i < layer.padded_inputs; i += COLUMNS) {
        const __m512 above = _mm512_sub_ps(_mm512_maskz_loadu_ps(i < inputs ? first(inputs - i) : 0, x + i), offset);
        const __m512i whole = _mm512_cvttps_epi32(_mm512_fmadd_ps(above, steps, _mm512_set1_ps(0.5f)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtusepi32_epi8(
            _mm512_max_epi32(whole, _mm512_setzero_si512())));
    }
}

// Where a layer writes (rows, outputs), and whether it adds to what is there; or `rounded`, in bfloat16, if that is not null.
struct Output {
    float* rows;
    bool adds;
    uint16_t* rounded;
};

// INT8: y plus the product of a row of this range, from its sum of integers. `weight_sums`: where `sums` has the column.
inline __m512 add_integers(const Layer& layer, long weight_sums, long column, float low, float span, __m512 sum, __m512 y) {
    const __mmask16 mask = first(layer.outputs - column);
    y = _mm512_fmadd_ps(_mm512_set1_ps(low), _mm512_maskz_loadu_ps(mask, layer.sums + weight_sums), y);
    const __m512 scaled = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(mask, layer.scale + column));
    return _mm512_fmadd_ps(scaled, _mm512_set1_ps(span), y);
}

// Sums → outputs of 16 columns of a row.
inline void finish(const Layer& layer, const Rows& rows, long row, long column, __m512 sum, Output output) {
    const __mmask16 mask = first(layer.outputs - column);
    const long at = row * layer.outputs + column;
    __m512 y = _mm512_maskz_loadu_ps(mask, layer.bias + column);
    if (layer.kind == INT8) {
        y = add_integers(layer, column, column, rows.low[row], rows.span[row], sum, y);
    } else {
        y = _mm512_add_ps(y, sum);
    }
    if (layer.gelu) y = layer.gelu == EXACT ? exact_gelu(y) : gelu(y);
    if (output.rounded)
        return _mm256_mask_storeu_epi16(output.rounded + at, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(y)));
    if (output.adds) y = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, output.rows + at), y);
    _mm512_mask_storeu_ps(output.rows + at, mask, y);
}

// 32 outputs of up to 32 rows from `row` on: emit(row - `row`, column, tap, sums of 16 columns), INT8 for every tap, others
// once. The first tap multiplies `row`, the next one the row after it. `prefetch`: weights come from memory; the
// first of the next pair are fetched while this one's sums are emitted.
template <Kind KIND, class Emit>
void multiply_pair(const Layer& layer, const Rows& rows, long row, long count, long pair, bool prefetch, Emit emit) {
    alignas(64) int32_t sums[2 * TILE_ROWS][PAIR];
    const bool amx = layer.amx && (KIND != INT8 || count > 2);      // integers sum up exactly in any order
    const long tiles = layer.padded_inputs * ACTIVATION_BYTES<KIND> / TILE_BYTES, taps = KIND == INT8 ? 1 : layer.taps;
    const long bytes = layer.taps * tiles * WHOLE_TILE<KIND>;
    const char* weights = static_cast<const char*>(layer.weights) + 2 * pair * bytes;
    for (long tap = 0; tap < layer.taps; tap += taps) {
        const char* left = weights + tap * tiles * WHOLE_TILE<KIND>;
        const Factors factors{rows.values + (row + tap) * rows.stride, rows.stride, count, left, left + bytes, taps, tiles};
        multiply<KIND>(amx, factors, prefetch, sums[0], PAIR);
        for (long i = 0; i < count; i++) {
            if (amx && prefetch && i < TILES_AHEAD) {
                fetch_tile(weights + 2 * bytes + i * WHOLE_TILE<KIND>);
                fetch_tile(weights + 3 * bytes + i * WHOLE_TILE<KIND>);
            }
            for (long half = 0; half < 2 && pair * PAIR + half * COLUMNS < layer.outputs; half++) {
                const __m512i sum = _mm512_load_si512(sums[i] + half * COLUMNS);
                emit(i, pair * PAIR + half * COLUMNS, tap, KIND == INT8 ? _mm512_cvtepi32_ps(sum) : _mm512_castsi512_ps(sum));
            }
        }
    }
}

// 32 outputs of the rows from `row` to `end`.
template <Kind KIND>
void pair_of(const Layer& layer, const Rows& rows, long row, long end, long pair, Output out) {
    for (const long begin = row; row < end; row += 2 * TILE_ROWS)       // later rows find the weights in the cache
        multiply_pair<KIND>(layer, rows, row, std::min(end - row, 2 * TILE_ROWS), pair, row == begin,
                            [&](long i, long column, long, __m512 sum) { finish(layer, rows, row + i, column, sum, out); });
}

// x (count, inputs) → out (count, outputs).
int linear(const Layer& layer, const float* x, Output out, long count, int threads) {
    const long size = layer.kind == INT8 ? 1 : layer.kind == BF16 ? 2 : 4;
    const long padded_rows = (count + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    const long normed = (layer.inputs + COLUMNS) * sizeof(float) / TILE_BYTES * TILE_BYTES;
    if (!count) return 0;
    if (layer.inputs * layer.outputs < FEWEST_WEIGHTS) threads = 1;
    Rows rows;
    rows.stride = layer.padded_inputs * size + TILE_BYTES;      // so that rows fall into different sets of a cache
    rows.values = scratch.reserve(padded_rows * (rows.stride + 2 * sizeof(float)) + threads * normed);
    if (!rows.values) return NO_MEMORY;
    rows.low = reinterpret_cast<float*>(rows.values + padded_rows * rows.stride);
    rows.span = rows.low + padded_rows;
    char* normed_rows = reinterpret_cast<char*>(rows.span + padded_rows);
    const long pairs = (layer.outputs + PAIR - 1) / PAIR, chunks = (count + CHUNK - 1) / CHUNK;
    const auto multiply = [&](long task) {
        const long row = task / pairs * CHUNK, end = std::min(row + CHUNK, count), pair = task % pairs;
        if (layer.kind == INT8) pair_of<INT8>(layer, rows, row, end, pair, out);
        else if (layer.kind == BF16) pair_of<BF16>(layer, rows, row, end, pair, out);
        else if (layer.kind == FP16) pair_of<FP16>(layer, rows, row, end, pair, out);
        else pair_of<FP32>(layer, rows, row, end, pair, out);
    };
    const bool amx = layer.amx && (layer.kind == INT8 || layer.kind == BF16);
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const TileScope tiles(amx, Tiles(count));
        float* own = reinterpret_cast<float*>(normed_rows + omp_get_thread_num() * normed);
        #pragma omp for schedule(static)
        for (long row = 0; row < count; row++) {
            const float* inputs = x + row * layer.inputs;
            if (layer.norm_weight) norm_row(layer, inputs, own);
            round_row(layer, layer.norm_weight ? own : inputs, rows, row);
        }
        if (chunks == 1) {      // pairs that follow each other are read from memory in one go
            #pragma omp for schedule(guided, 2)
            for (long task = 0; task < pairs; task++) multiply(task);
        } else {
            #pragma omp for schedule(dynamic, 2)
            for (long task = 0; task < chunks * pairs; task++) multiply(task);
        }
    }
    return 0;
}

}  // namespace
