// Kernels for x86-64 with AVX-512: the steps of decoders and of denoisers.
//
// A row, a lane or a frame is computed in an order that depends on nothing else: not on others, the number of threads
// or how memory is aligned. Threads are torch's.
//
// Plain functions that ctypes calls (../kernels.py and ../kernel_frames.py declare the structures), so that a build
// depends on no ABI of torch. But for the checksum they return 0, NO_MEMORY, or TOO_WIDE for attention over caches.

#include "attention.h"
#include "frame_attention.h"
#include "frames.h"
#include "linear.h"

namespace {

// Layers of a block of a decoder.
struct Block {
    const Layer *query, *key, *value;               // key and value null: query computes all three, one after another
    const Layer *projection;
    const Layer *memory_query, *memory_projection;  // of attention to a memory; null: the block has none
    const Layer *expansion, *contraction;
};

// A block of an encoder: norm, attention among the columns of a row, norm, two layers with GELU. Outputs of `qkv` are q, k
// and v of a head, then those of the next one.
struct EncoderBlock {
    const Layer *qkv, *projection, *expansion, *contraction;
    long heads;
};

// Bytes from a block's caches to those of the next block.
struct CacheBytes {
    long prefix, own, memory;
};

// One for a layer that is too small to share.
int threads_for(int threads, const Frames& frames, const Layer& layer) {
    return frames.count() * layer.inputs * layer.outputs * layer.taps < FEWEST_PRODUCTS ? 1 : threads;
}

FrameHead head_of(const FrameAttention& block, const Frames& frames, const uint16_t* qkv, float* out, long row, long head) {
    const long channels = block.qkv->inputs, width = channels / block.heads, length = frames.lengths[row];
    const long before = frames.before(row);
    return {qkv + before * 3 * channels + head * 3 * width, 3 * channels, length, width,
            block.biases + head * (2 * block.longest - 1) + block.longest - length,
            out + before * channels + head * width, channels};
}

float* floats(long count) { return reinterpret_cast<float*>(activations.reserve(count * sizeof(float))); }

}  // namespace

extern "C" {

// Of the source that this was built from.
unsigned ane_kernels_checksum() { return ANE_CHECKSUM; }

// x (count, inputs) → out (count, outputs).
int ane_linear(const Layer* layer, const float* x, float* out, long count, int threads) {
    return linear(*layer, x, {out, false, nullptr}, count, threads);
}

// Writes k and v into the lanes' caches, then attends.
int ane_attend(const Attention* call, int threads) { return attend(*call, threads); }

// Blocks of a decoder on x (lanes, columns, heads · width), in place. `call` has the caches of the first block; `heard` its
// keys and values of the memory, as a prefix of lanes that have no positions of their own; null: no block has a memory.
// `recorded` by block, as in Attention. The norms and GELU are joined to the layers.
int ane_blocks(const Block* blocks, long count, const Attention* call, const Attention* heard, const CacheBytes* bytes,
               float* const* recorded, float* x, int threads) {
    const long width = call->heads * call->width, rows = call->lanes * call->columns;
    const long expanded = blocks[0].expansion->outputs;
    float* memory = floats(rows * (4 * width + expanded));
    if (!memory) return NO_MEMORY;
    float *attended = memory + 3 * width * rows, *wide = attended + width * rows;
    const auto layer = [&](const Layer* chosen, const float* from, Output to) { return linear(*chosen, from, to, rows, threads); };
    const auto advanced = [](const void* cache, long distance) {
        return const_cast<char*>(static_cast<const char*>(cache)) + distance;
    };
    int status = 0;
    for (long i = 0; i < count && !status; i++) {
        const Block& block = blocks[i];
        const long apart = block.key ? width * rows : width, stride = block.key ? width : 3 * width;
        Attention own = *call;
        own.q = memory, own.k = memory + apart, own.v = memory + 2 * apart, own.out = attended;
        own.head_stride = call->width, own.column_stride = stride, own.lane_stride = stride * call->columns;
        own.recorded = recorded[i];
        if (call->prefix_keys) {
            own.prefix_keys = advanced(call->prefix_keys, i * bytes->prefix);
            own.prefix_values = advanced(call->prefix_values, i * bytes->prefix);
        }
        own.keys = advanced(call->keys, i * bytes->own), own.values = advanced(call->values, i * bytes->own);
        if ((status = layer(block.query, x, {memory, false, nullptr}))) break;
        if (block.key && (status = layer(block.key, x, {memory + apart, false, nullptr}))) break;
        if (block.key && (status = layer(block.value, x, {memory + 2 * apart, false, nullptr}))) break;
        if ((status = attend(own, threads))) break;
        if ((status = layer(block.projection, attended, {x, true, nullptr}))) break;
        if (heard) {
            Attention other = *heard;
            other.q = memory, other.out = attended;
            other.head_stride = call->width, other.column_stride = width, other.lane_stride = width * call->columns;
            other.prefix_keys = advanced(heard->prefix_keys, i * bytes->memory);
            other.prefix_values = advanced(heard->prefix_values, i * bytes->memory);
            if ((status = layer(block.memory_query, x, {memory, false, nullptr}))) break;
            if ((status = attend(other, threads))) break;
            if ((status = layer(block.memory_projection, attended, {x, true, nullptr}))) break;
        }
        if ((status = layer(block.expansion, x, {wide, false, nullptr}))) break;
        status = layer(block.contraction, wide, {x, true, nullptr});
    }
    return status;
}

// x (frames, inputs) → out (frames, outputs): a layer of single frames, or a convolution of three taps in each row.
int ane_frame_layer(const Layer* layer, const Frames* frames, const float* x, float* out, int threads) {
    Workspace work;
    threads = threads_for(threads, *frames, *layer);
    if (!work.prepare(*frames, layer->inputs, threads)) return NO_MEMORY;
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const TileScope tiles(layer->amx);
        frame_layer(work, *layer, x, nullptr, {out, nullptr, nullptr});
    }
    return 0;
}

// x (frames, channels) → out. `time` (times, channels): SiLU of timesteps' embeddings; row r uses row r % times of it.
int ane_residual(const Residual* block, const Frames* frames, const float* time, long times, const float* x, float* out,
                 int threads) {
    const long channels = block->first->inputs;
    float* shifts = floats(2 * channels * times + channels * frames->count());
    if (!shifts) return NO_MEMORY;
    float* hidden = shifts + 2 * channels * times;
    const int status = linear(*block->time, time, {shifts, false, nullptr}, times, threads);
    if (status) return status;
    Workspace work;
    threads = threads_for(threads, *frames, *block->first);
    if (!work.prepare(*frames, channels, threads)) return NO_MEMORY;
    work.scaling.silu = true;
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const TileScope tiles(block->first->amx);
        find_scaling(work, x, block->first_norm, channels, nullptr, 1);
        frame_layer(work, *block->first, x, &work.scaling, {hidden, nullptr, nullptr});
        find_scaling(work, hidden, block->second_norm, channels, shifts, times);
        frame_layer(work, *block->second, hidden, &work.scaling, {out, x, nullptr});
    }
    return 0;
}

// x (frames, channels) → out.
int ane_frame_attention(const FrameAttention* block, const Frames* frames, const float* x, float* out, int threads) {
    const long channels = block->qkv->inputs, width = channels / block->heads, count = frames->count();
    threads = threads_for(threads, *frames, *block->qkv);
    const long bytes = attention_bytes(frames->longest(), width);
    const long all = (channels * count * sizeof(float) + 3 * channels * count * sizeof(uint16_t)) / TILE_BYTES * TILE_BYTES;
    char* memory = activations.reserve(all + TILE_BYTES + threads * bytes);
    Workspace work;
    if (!memory || !work.prepare(*frames, channels, threads)) return NO_MEMORY;
    work.scaling.silu = false;
    float* attended = reinterpret_cast<float*>(memory);
    uint16_t* qkv = reinterpret_cast<uint16_t*>(attended + channels * count);
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const TileScope tiles(block->qkv->amx);
        find_scaling(work, x, block->norm, channels, nullptr, 1);
        frame_layer(work, *block->qkv, x, &work.scaling, {nullptr, nullptr, qkv});
        char* own = memory + all + TILE_BYTES + omp_get_thread_num() * bytes;
        #pragma omp for schedule(dynamic)
        for (long task = 0; task < frames->rows * block->heads; task++)
            attend_to_frames(head_of(*block, *frames, qkv, attended, task / block->heads, task % block->heads),
                             block->qkv->amx, own);
        frame_layer(work, *block->projection, attended, nullptr, {out, x, nullptr});
    }
    return 0;
}

// x (rows, length, channels), in place. The norms and GELU are joined to the layers.
int ane_encoder_block(const EncoderBlock* block, long rows, long length, float* x, int threads) {
    const long channels = block->qkv->inputs, count = rows * length, width = channels / block->heads;
    const long wide = std::max(block->expansion->outputs, 3 * channels), bytes = attention_bytes(length, width);
    const long all = count * (channels + wide) + 2 * length;
    char* memory = activations.reserve(all * sizeof(float) + (threads + 1) * (bytes + TILE_BYTES));
    if (!memory) return NO_MEMORY;
    float *attended = reinterpret_cast<float*>(memory), *expanded = attended + count * channels;
    float* biases = expanded + count * wide;
    uint16_t* qkv = reinterpret_cast<uint16_t*>(expanded);      // read before `expanded` is written
    std::fill(biases, biases + 2 * length, 0.0f);
    if (const int status = linear(*block->qkv, x, {nullptr, false, qkv}, count, threads)) return status;
    const long own_bytes = (bytes + TILE_BYTES) / TILE_BYTES * TILE_BYTES;
    char* own = memory + (all * sizeof(float) + TILE_BYTES) / TILE_BYTES * TILE_BYTES;
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const TileScope tiles(block->qkv->amx);
        #pragma omp for schedule(dynamic)
        for (long task = 0; task < rows * block->heads; task++) {
            const long first_column = task / block->heads * length, head = task % block->heads;
            const FrameHead call{qkv + first_column * 3 * channels + head * 3 * width, 3 * channels, length, width, biases,
                                 attended + first_column * channels + head * width, channels};
            attend_to_frames(call, block->qkv->amx, own + omp_get_thread_num() * own_bytes);
        }
    }
    if (const int status = linear(*block->projection, attended, {x, true, nullptr}, count, threads)) return status;
    if (const int status = linear(*block->expansion, x, {expanded, false, nullptr}, count, threads)) return status;
    return linear(*block->contraction, expanded, {x, true, nullptr}, count, threads);
}

}  // extern "C"
