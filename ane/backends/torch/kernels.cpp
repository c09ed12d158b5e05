// Kernels of a decoder's step on x86-64 with AVX-512: linear layers with packed weights, and attention over caches.
//
// A row, and a lane, is computed in an order that depends on nothing else: not on the other rows, the number of
// threads or how memory is aligned. A layer is one parallel region of OpenMP, and so is attention; threads are torch's.
//
// Plain functions that ctypes calls (kernels.py, which states the layouts), so that a build depends on no ABI of torch.

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
constexpr long FEWEST_WEIGHTS = 1 << 16;    // that several threads multiply with: a wait for another costs microseconds

constexpr int NO_MEMORY = 1, TOO_WIDE = 2;      // a head of more than 128 numbers

enum Kind : long { INT8 = 0, BF16 = 1, FP16 = 2, FP32 = 3 };

// The arguments of a linear layer; kernels.py declares the same fields.
struct Layer {
    long kind, inputs, padded_inputs, outputs, amx, gelu;
    const void* weights;          // (outputs / 16, inputs / g, 16, g), g numbers of 4 bytes; FP16 and FP32: g = 1
    const float* bias;
    const float* scale;           // INT8: of a unit of an activation's range
    const float* sums;            // INT8: of each output's weights
    const float* norm_weight;     // of a LayerNorm of the inputs; null: none
    const float* norm_bias;
    float epsilon;
};

// Layers of a block of GPT-2: queries, keys and values; projection; expansion; contraction.
struct Block {
    const Layer* layers[4];
};

// The arguments of attention; positions of the caches are (layer's) [lane or prefix][head][position][width].
struct Attention {
    long lanes, columns, heads, width, half;    // half: the caches are fp16, else float32
    const float *q, *k, *v;                     // of lane, column and head: strides in numbers
    long lane_stride, column_stride, head_stride;
    float* out;                                 // (lanes, columns, heads, width)
    const void *prefix_keys, *prefix_values;    // null: no prefix
    long prefix_capacity;
    const long *prefix_of, *prefix_lengths;     // by lane
    void *keys, *values;
    long capacity;
    const long* lengths;                        // by lane: positions before the new columns
    float* recorded;                            // (lanes, heads, recorded_positions): the last column's scores of
    long recorded_positions;                    // its prefix, or of its lane if it has none; null: not wanted
    float scale;
};

// Memory of a thread that calls, kept for its next calls.
struct Scratch {
    char* data = nullptr;
    size_t size = 0;
    ~Scratch() { operator delete(data, std::align_val_t(64)); }
    // Null when memory has run out.
    char* of(size_t bytes) {
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

// GELU by tanh: x / (1 + e^(-2u)), u = √(2/π) (x + 0.044715 x³). NaN stays NaN.
inline __m512 gelu(__m512 x) {
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    const __m512 u = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
    const __m512 e = exponential(_mm512_mul_ps(u, _mm512_set1_ps(-1.59576912f)));
    return _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

// Rows of activations as the products take them.
struct Rows {
    char* values;       // (rows padded to those of a tile, stride bytes)
    long stride;
    float *low, *span;  // INT8: by row
};

void prepare_row(const Layer& layer, const float* x, Rows rows, long row, float* normed) {
    const long inputs = layer.inputs;
    if (layer.norm_weight) {
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
        x = normed;
    }
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

// Where a layer writes (rows, outputs), and whether it adds to what is there.
struct Output {
    float* rows;
    bool adds;
};

// Sums → outputs of 16 columns of a row.
inline void finish(const Layer& layer, const Rows& rows, long row, long column, __m512 sum, Output output) {
    const __mmask16 mask = first(layer.outputs - column);
    float* out = output.rows + row * layer.outputs + column;
    __m512 y = _mm512_maskz_loadu_ps(mask, layer.bias + column);
    if (layer.kind == INT8) {
        y = _mm512_fmadd_ps(_mm512_set1_ps(rows.low[row]), _mm512_maskz_loadu_ps(mask, layer.sums + column), y);
        const __m512 scaled = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(mask, layer.scale + column));
        y = _mm512_fmadd_ps(scaled, _mm512_set1_ps(rows.span[row]), y);
    } else {
        y = _mm512_add_ps(y, sum);
    }
    if (layer.gelu) y = gelu(y);
    if (output.adds) y = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), y);
    _mm512_mask_storeu_ps(out, mask, y);
}

// The configuration of AMX's tiles (Intel's manual, LDTILECFG).
struct alignas(64) Tiles {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    // Of a product of so many rows; tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
    explicit Tiles(long count) {
        for (int tile = 0; tile < 8; tile++) {
            const bool second = tile == 2 || tile == 3 || tile == 5;
            bytes[tile] = TILE_BYTES;
            rows[tile] = tile > 5 || count > 2 * TILE_ROWS ? TILE_ROWS
                : second ? std::max(count - TILE_ROWS, 1L) : std::min(count, TILE_ROWS);
        }
    }
};

// 32 outputs of up to 32 rows from `row` on.
template <Kind KIND>
void pair_by_amx(const Layer& layer, const Rows& rows, long row, long count, long pair, Output out) {
    alignas(64) int32_t sums[4][TILE_ROWS * COLUMNS];
    const long steps = layer.padded_inputs * (KIND == INT8 ? 1 : 2) / TILE_BYTES;
    const char* left = static_cast<const char*>(layer.weights) + 2 * pair * steps * TILE_ROWS * TILE_BYTES;
    const char* right = left + steps * TILE_ROWS * TILE_BYTES;
    const char* upper = rows.values + row * rows.stride;
    const char* lower = upper + TILE_ROWS * rows.stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long step = 0; step < steps; step++) {
        _tile_loadd(6, left + step * TILE_ROWS * TILE_BYTES, TILE_BYTES);
        _tile_loadd(7, right + step * TILE_ROWS * TILE_BYTES, TILE_BYTES);
        _tile_loadd(4, upper + step * TILE_BYTES, rows.stride);
        if (KIND == INT8) {
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (count <= TILE_ROWS) continue;
        _tile_loadd(5, lower + step * TILE_BYTES, rows.stride);
        if (KIND == INT8) {
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        } else {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], TILE_BYTES);
    _tile_stored(1, sums[1], TILE_BYTES);
    if (count > TILE_ROWS) {
        _tile_stored(2, sums[2], TILE_BYTES);
        _tile_stored(3, sums[3], TILE_BYTES);
    }
    for (long i = 0; i < count; i++)
        for (long half = 0; half < 2 && pair * PAIR + half * COLUMNS < layer.outputs; half++) {
            const int32_t* found = sums[2 * (i / TILE_ROWS) + half] + i % TILE_ROWS * COLUMNS;
            const __m512i sum = _mm512_load_si512(found);
            finish(layer, rows, row + i, pair * PAIR + half * COLUMNS,
                   KIND == INT8 ? _mm512_cvtepi32_ps(sum) : _mm512_castsi512_ps(sum), out);
        }
}

template <Kind KIND>
inline __m512i product(__m512i sum, __m512i weights, const char* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m512i spread = _mm512_set1_epi32(four);
    if (KIND == INT8) return _mm512_dpbusd_epi32(sum, spread, weights);
    if (KIND == BF16)
        return _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(sum), reinterpret_cast<__m512bh>(spread),
                                                    reinterpret_cast<__m512bh>(weights)));
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(spread), _mm512_castsi512_ps(weights),
                                               _mm512_castsi512_ps(sum)));
}

// The same without AMX, COUNT rows at a time: each sum is a chain of its own over the inputs.
template <Kind KIND, int COUNT>
void pair_by_vectors(const Layer& layer, const Rows& rows, long row, long pair, Output out) {
    const long bytes = KIND == FP16 ? 32 : 64;
    const long steps = layer.padded_inputs / (KIND == INT8 ? 4 : KIND == BF16 ? 2 : 1);
    const char* left = static_cast<const char*>(layer.weights) + 2 * pair * steps * bytes;
    const char* right = left + steps * bytes;
    __m512i sums[COUNT][2];
    for (int i = 0; i < COUNT; i++) sums[i][0] = sums[i][1] = _mm512_setzero_si512();
    const auto loaded = [](const char* at) {
        if (KIND == FP16)
            return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
        return _mm512_loadu_si512(at);
    };
    for (long step = 0; step < steps; step++) {
        const __m512i a = loaded(left + step * bytes), b = loaded(right + step * bytes);
        for (int i = 0; i < COUNT; i++) {
            const char* x = rows.values + (row + i) * rows.stride + 4 * step;
            sums[i][0] = product<KIND>(sums[i][0], a, x), sums[i][1] = product<KIND>(sums[i][1], b, x);
        }
    }
    for (int i = 0; i < COUNT; i++)
        for (long half = 0; half < 2 && pair * PAIR + half * COLUMNS < layer.outputs; half++)
            finish(layer, rows, row + i, pair * PAIR + half * COLUMNS, KIND == INT8
                   ? _mm512_cvtepi32_ps(sums[i][half]) : _mm512_castsi512_ps(sums[i][half]), out);
}

template <Kind KIND>
void pair_of(const Layer& layer, const Rows& rows, long count, long pair, Output out) {
    constexpr bool TILES = KIND == INT8 || KIND == BF16;
    if (TILES && layer.amx && (KIND == BF16 || count > 2)) {     // integers sum up exactly in any order
        for (long row = 0; row < count; row += 2 * TILE_ROWS)
            pair_by_amx<TILES ? KIND : BF16>(layer, rows, row, std::min(count - row, 2 * TILE_ROWS), pair, out);
        return;
    }
    long row = 0;
    for (; count - row >= 8; row += 8) pair_by_vectors<KIND, 8>(layer, rows, row, pair, out);
    for (; count - row >= 4; row += 4) pair_by_vectors<KIND, 4>(layer, rows, row, pair, out);
    for (; count - row >= 2; row += 2) pair_by_vectors<KIND, 2>(layer, rows, row, pair, out);
    if (row < count) pair_by_vectors<KIND, 1>(layer, rows, row, pair, out);
}

template <bool HALF>
inline __m512 loaded(const void* cache, long at, __mmask16 mask) {
    if (HALF) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(cache) + at));
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(cache) + at);
}

template <bool HALF>
inline void stored(void* cache, long at, __mmask16 mask, __m512 value) {
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
        return loaded<HALF>(cache, at + position * width + part * COLUMNS, mask(part));
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
    const long width = call.width, before = call.lengths[lane];
    const long prefix = call.prefix_keys ? call.prefix_lengths[lane] : 0;
    const long shared = prefix ? (call.prefix_of[lane] * call.heads + head) * call.prefix_capacity * width : 0;
    const long own = (lane * call.heads + head) * call.capacity * width;
    const Head<HALF, VECTORS> prefix_keys{call.prefix_keys, shared, width}, keys{call.keys, own, width};
    const Head<HALF, VECTORS> prefix_values{call.prefix_values, shared, width}, values{call.values, own, width};
    for (long column = 0; column < call.columns; column++) {
        const long at = lane * call.lane_stride + column * call.column_stride + head * call.head_stride;
        const long new_at = own + (before + column) * width, length = before + column + 1;
        __m512 q[VECTORS], sums[VECTORS];
        for (int part = 0; part < VECTORS; part++) {
            const long offset = part * COLUMNS;
            const __mmask16 mask = keys.mask(part);
            stored<HALF>(call.keys, new_at + offset, mask, _mm512_maskz_loadu_ps(mask, call.k + at + offset));
            stored<HALF>(call.values, new_at + offset, mask, _mm512_maskz_loadu_ps(mask, call.v + at + offset));
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
        most = std::max(most, call.lengths[lane] + call.columns + (call.prefix_keys ? call.prefix_lengths[lane] : 0));
    const long room = (most + 2 * COLUMNS) / COLUMNS * COLUMNS, tasks = call.lanes * call.heads;
    float* scores = reinterpret_cast<float*>(scratch.of(threads * room * sizeof(float)));
    if (!scores) return NO_MEMORY;
    // heads outside: lanes of one prefix read its head one after the other, from the caches of the core
    #pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long task = 0; task < tasks; task++) {
        float* own_scores = scores + omp_get_thread_num() * room;
        if (call.half) attend_head<true, VECTORS>(call, task % call.lanes, task / call.lanes, own_scores);
        else attend_head<false, VECTORS>(call, task % call.lanes, task / call.lanes, own_scores);
    }
    return 0;
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
    rows.values = scratch.of(padded_rows * (rows.stride + 2 * sizeof(float)) + threads * normed);
    if (!rows.values) return NO_MEMORY;
    rows.low = reinterpret_cast<float*>(rows.values + padded_rows * rows.stride);
    rows.span = rows.low + padded_rows;
    char* normed_rows = reinterpret_cast<char*>(rows.span + padded_rows);
    const long pairs = (layer.outputs + PAIR - 1) / PAIR;
    const bool amx = layer.amx && (layer.kind == INT8 || layer.kind == BF16);
    const Tiles tiles(count);
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float* own = reinterpret_cast<float*>(normed_rows + omp_get_thread_num() * normed);
        #pragma omp for schedule(static)
        for (long row = 0; row < count; row++) prepare_row(layer, x + row * layer.inputs, rows, row, own);
        if (amx) _tile_loadconfig(&tiles);
        #pragma omp for schedule(dynamic, 2)
        for (long pair = 0; pair < pairs; pair++) {
            if (layer.kind == INT8) pair_of<INT8>(layer, rows, count, pair, out);
            else if (layer.kind == BF16) pair_of<BF16>(layer, rows, count, pair, out);
            else if (layer.kind == FP16) pair_of<FP16>(layer, rows, count, pair, out);
            else pair_of<FP32>(layer, rows, count, pair, out);
        }
        if (amx) _tile_release();
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

extern "C" {

// Of the source that this was built from.
unsigned ane_kernels_checksum() { return ANE_CHECKSUM; }

// These return 0, NO_MEMORY or TOO_WIDE.

// x (count, inputs) → out (count, outputs).
int ane_linear(const Layer* layer, const float* x, float* out, long count, int threads) {
    return linear(*layer, x, {out, false}, count, threads);
}

// Writes k and v into the lanes' caches, then attends.
int ane_attend(const Attention* call, int threads) { return attend(*call, threads); }

// Blocks of GPT-2 on x (lanes, columns, heads · width), in place. `call` has the caches of the first block, the others'
// follow after so many bytes; `recorded` by block, as in Attention. The norms and GELU are joined to the layers.
int ane_blocks(const Block* blocks, long count, const Attention* call, long prefix_bytes, long own_bytes,
               float* const* recorded, float* x, int threads) {
    const long width = call->heads * call->width, rows = call->lanes * call->columns;
    const long expanded = blocks[0].layers[2]->outputs;
    float* memory = reinterpret_cast<float*>(activations.of(rows * (4 * width + expanded) * sizeof(float)));
    if (!memory) return NO_MEMORY;
    float *attended = memory + 3 * width * rows, *wide = attended + width * rows;
    Attention each = *call;
    each.q = memory, each.k = memory + width, each.v = memory + 2 * width, each.out = attended;
    each.head_stride = call->width, each.column_stride = 3 * width, each.lane_stride = 3 * width * call->columns;
    const auto moved = [](const void* cache, long bytes) { return const_cast<char*>(static_cast<const char*>(cache)) + bytes; };
    int status = 0;
    for (long block = 0; block < count && !status; block++) {
        const Layer* const* layers = blocks[block].layers;
        each.recorded = recorded[block];
        if (call->prefix_keys) {
            each.prefix_keys = moved(call->prefix_keys, block * prefix_bytes);
            each.prefix_values = moved(call->prefix_values, block * prefix_bytes);
        }
        each.keys = moved(call->keys, block * own_bytes), each.values = moved(call->values, block * own_bytes);
        if ((status = linear(*layers[0], x, {memory, false}, rows, threads))) break;
        if ((status = attend(each, threads))) break;
        if ((status = linear(*layers[1], attended, {x, true}, rows, threads))) break;
        if ((status = linear(*layers[2], x, {wide, false}, rows, threads))) break;
        status = linear(*layers[3], wide, {x, true}, rows, threads);
    }
    return status;
}

}  // extern "C"
