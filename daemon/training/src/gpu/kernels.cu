// Transformer training on NVIDIA GPUs: everything but the matrix products, which are cuBLAS's.
//
// The build script compiles this to PTX. Tests compile it with a C++ compiler, where `emulator.h` stands in for the GPU,
// so only what that header knows is used here.
//
// Conventions: tensors are row-major; `T` is what matrices are multiplied in, float or bfloat16, and all sums are floats.
// One block handles one row unless a kernel says otherwise; blocks have a multiple of 32 threads.

#ifndef MURMUR_EMULATED
#include <cuda_bf16.h>
#endif

typedef __nv_bfloat16 bf16;
typedef unsigned int u32;

__device__ inline float load(const float *place) { return *place; }
__device__ inline float load(const bf16 *place) { return __bfloat162float(*place); }
__device__ inline void store(float *place, float value) { *place = value; }
__device__ inline void store(bf16 *place, float value) { *place = __float2bfloat16(value); }

/// Threads take four values at once where rows are multiples of four, and one each elsewhere: `COUNT`.
template <u32 COUNT> struct Values {
    float at[COUNT];
};

template <u32 COUNT, typename T> __device__ Values<COUNT> load_all(const T *place) {
    static_assert(COUNT == 1, "more have their own way");
    return {load(place)};
}
template <u32 COUNT, typename T> __device__ void store_all(T *place, const Values<COUNT> &values) {
    store(place, values.at[0]);
}

#ifndef MURMUR_EMULATED
/// Two values, the first one in the lower half.
__device__ inline u32 pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(u32 *)&pair;
}

/// 2^x, or 0 where that is no normal number.
__device__ inline float power_of_two(float value) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}

__device__ inline float lower(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float upper(u32 pair) { return __uint_as_float(pair & 0xffff0000); }

/// `sums` += A [16, 16] · B [16, 8] of a warp (PTX ISA, `mma.m16n8k16`).
__device__ inline void multiply_add(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four matrices [8, 8] from shared memory, of which each lane names one row (PTX ISA, `ldmatrix`).
__device__ inline void load_matrices(u32 (&matrices)[4], const bf16 *row, bool transposed) {
    u32 place = (u32)__cvta_generic_to_shared(row);
    if (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                     : "r"(place) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                     : "r"(place) : "memory");
    }
}

/// Begins to copy 16 bytes to shared memory, or fills them with zeros.
__device__ inline void copy_beside(bf16 *to, const bf16 *from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(exists ? 16 : 0) : "memory");
}

/// The same for one value.
__device__ inline void copy_beside(float *to, const float *from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(exists ? 4 : 0) : "memory");
}

/// Those begun since the last call are one group.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Until at most the last group is under way.
__device__ inline void wait_for_copies_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
#endif

template <> __device__ inline Values<4> load_all<4, float>(const float *place) {
    float4 four = *(const float4 *)place;
    return {four.x, four.y, four.z, four.w};
}
template <> __device__ inline Values<4> load_all<4, bf16>(const bf16 *place) {
    uint2 pairs = *(const uint2 *)place;
    return {lower(pairs.x), upper(pairs.x), lower(pairs.y), upper(pairs.y)};
}
template <> __device__ inline void store_all<4, float>(float *place, const Values<4> &values) {
    *(float4 *)place = {values.at[0], values.at[1], values.at[2], values.at[3]};
}
template <> __device__ inline void store_all<4, bf16>(bf16 *place, const Values<4> &values) {
    *(uint2 *)place = {pack(values.at[0], values.at[1]), pack(values.at[2], values.at[3])};
}

/// σ(x).
__device__ inline float sigmoid(float value) { return __fdividef(1, 1 + __expf(-value)); }

/// Over all threads of the block; every thread gets it.
template <typename V> __device__ V block_sum(V value) {
    __shared__ V partial_sums[32];
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
    __syncthreads(); // the call before may still be reading
    if (threadIdx.x % 32 == 0) partial_sums[threadIdx.x / 32] = value;
    __syncthreads();
    V sum = 0;
    for (u32 warp = 0; warp < blockDim.x / 32; ++warp) sum += partial_sums[warp];
    return sum;
}

__device__ inline float block_max(float value) {
    __shared__ float partial_maxima[32];
    for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial_maxima[threadIdx.x / 32] = value;
    __syncthreads();
    float maximum = partial_maxima[0];
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) maximum = fmaxf(maximum, partial_maxima[warp]);
    return maximum;
}

/// Element of a kernel with one thread for each.
__device__ inline size_t element() { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }

// Embedding: `table` [vocabulary, width], `stream` [rows, width].

extern "C" __global__ void embed(const float *table, const u32 *tokens, float *stream, u32 width) {
    const float *from = table + (size_t)tokens[blockIdx.x] * width;
    float *to = stream + (size_t)blockIdx.x * width;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) to[column] = from[column];
}

/// The same of a table in 8 bits: blocks of 64 values in the order of its rows, each with a scale.
extern "C" __global__ void embed_coded(const signed char *codes, const bf16 *scales, const u32 *tokens, float *stream,
                                       u32 width) {
    size_t first = (size_t)tokens[blockIdx.x] * width;
    float *to = stream + (size_t)blockIdx.x * width;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) {
        size_t from = first + column;
        to[column] = codes[from] * load(scales + from / 64);
    }
}

/// Rows of one token meet in one row of the table, in any order.
extern "C" __global__ void embed_backward(const float *to_stream, const u32 *tokens, float *to_table, u32 width) {
    const float *from = to_stream + (size_t)blockIdx.x * width;
    float *to = to_table + (size_t)tokens[blockIdx.x] * width;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) atomicAdd(to + column, from[column]);
}

// RMSNorm: `output` = `scale` · x / √(mean x² + ε).

template <u32 COUNT, typename T>
__device__ void rms_norm(const float *input, const float *scale, T *output, u32 width, float epsilon) {
    const float *row = input + (size_t)blockIdx.x * width;
    float squares = 0;
    for (u32 column = COUNT * threadIdx.x; column < width; column += COUNT * blockDim.x) {
        auto values = load_all<COUNT>(row + column);
        for (float value : values.at) squares += value * value;
    }
    float factor = rsqrtf(block_sum(squares) / width + epsilon);
    T *to = output + (size_t)blockIdx.x * width;
    for (u32 column = COUNT * threadIdx.x; column < width; column += COUNT * blockDim.x) {
        auto values = load_all<COUNT>(row + column);
        for (u32 index = 0; index < COUNT; ++index) values.at[index] *= factor * scale[column + index];
        store_all(to + column, values);
    }
}

/// `sum` = `stream` + `added`, and `output` its norm, where there is a scale.
template <u32 COUNT, typename T>
__device__ void add_and_norm(const float *stream, const T *added, float *sum, const float *scale, T *output, u32 width,
                             float epsilon) {
    size_t first = (size_t)blockIdx.x * width;
    float squares = 0;
    for (u32 column = COUNT * threadIdx.x; column < width; column += COUNT * blockDim.x) {
        auto values = load_all<COUNT>(stream + first + column);
        auto more = load_all<COUNT>(added + first + column);
        for (u32 index = 0; index < COUNT; ++index) {
            values.at[index] += more.at[index];
            squares += values.at[index] * values.at[index];
        }
        store_all(sum + first + column, values);
    }
    if (scale == nullptr) return;
    float factor = rsqrtf(block_sum(squares) / width + epsilon);
    for (u32 column = COUNT * threadIdx.x; column < width; column += COUNT * blockDim.x) {
        auto values = load_all<COUNT>(sum + first + column);
        for (u32 index = 0; index < COUNT; ++index) values.at[index] *= factor * scale[column + index];
        store_all(output + first + column, values);
    }
}

/// Rows of each warp of `rms_norm_backward`.
#define NORM_ROWS 4

/// Adds to `to_input` and, where there is one, `to_scale`, and leaves `to_input` rounded as well. Warps go through their rows side by side, first
/// for what each row's gradient shrinks by, then for columns, whose sums the block's warps add up.
template <u32 COUNT, typename T>
__device__ void rms_norm_backward(const float *input, const float *scale, const T *to_output, float *to_input, T *rounded,
                                  float *to_scale, u32 rows, u32 width, float epsilon) {
    __shared__ float partial_sums[32][COUNT * 32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u32 first = (blockIdx.x * warps + warp) * NORM_ROWS;
    float squares[NORM_ROWS] = {}, products[NORM_ROWS] = {};
    for (u32 column = COUNT * lane; column < width; column += COUNT * 32) {
#pragma unroll
        for (u32 row = 0; row < NORM_ROWS; ++row) {
            if (first + row >= rows) continue;
            size_t place = (size_t)(first + row) * width + column;
            auto values = load_all<COUNT>(input + place), gradients = load_all<COUNT>(to_output + place);
            for (u32 index = 0; index < COUNT; ++index) {
                squares[row] += values.at[index] * values.at[index];
                products[row] += gradients.at[index] * scale[column + index] * values.at[index];
            }
        }
    }
    float factors[NORM_ROWS], shrinks[NORM_ROWS];
#pragma unroll
    for (u32 row = 0; row < NORM_ROWS; ++row) {
        for (int distance = 16; distance > 0; distance /= 2) {
            squares[row] += __shfl_xor_sync(0xffffffff, squares[row], distance);
            products[row] += __shfl_xor_sync(0xffffffff, products[row], distance);
        }
        float factor = rsqrtf(squares[row] / width + epsilon);
        factors[row] = factor, shrinks[row] = products[row] * factor * factor * factor / width;
    }
    for (u32 begin = 0; begin < width; begin += COUNT * 32) {
        u32 column = begin + COUNT * lane;
        float sums[COUNT] = {};
        if (column < width) {
#pragma unroll
            for (u32 row = 0; row < NORM_ROWS; ++row) {
                if (first + row >= rows) continue;
                size_t place = (size_t)(first + row) * width + column;
                auto values = load_all<COUNT>(input + place), gradients = load_all<COUNT>(to_output + place);
                auto onto = load_all<COUNT>(to_input + place);
                for (u32 index = 0; index < COUNT; ++index) {
                    float gradient = gradients.at[index] * factors[row];
                    sums[index] += gradient * values.at[index];
                    onto.at[index] += gradient * scale[column + index] - values.at[index] * shrinks[row];
                }
                store_all(to_input + place, onto);
                store_all(rounded + place, onto);
            }
        }
        __syncthreads(); // the columns before may still be read
        for (u32 index = 0; index < COUNT; ++index) partial_sums[warp][COUNT * lane + index] = sums[index];
        __syncthreads();
        if (to_scale == nullptr) continue;
        for (u32 index = threadIdx.x; index < COUNT * 32 && begin + index < width; index += blockDim.x) {
            float sum = 0;
            for (u32 other = 0; other < warps; ++other) sum += partial_sums[other][index];
            atomicAdd(to_scale + begin + index, sum);
        }
    }
}

// Biases: of `width` columns from `first` on of rows that are `row_width` wide.

template <typename T> __device__ void add_bias(T *values, const float *bias, u32 row_width, u32 first, u32 width) {
    T *row = values + (size_t)blockIdx.x * row_width + first;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) {
        store(row + column, load(row + column) + bias[column]);
    }
}

/// Adds to `to_bias`. A block sums one column of 32 over one strip of `strip` rows; its warps take turns at the rows.
template <typename T>
__device__ void bias_backward(const T *gradient, float *to_bias, u32 rows, u32 row_width, u32 first, u32 width,
                              u32 strip) {
    __shared__ float sums[32][33];
    u32 groups = (width + 31) / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    u32 column = blockIdx.x % groups * 32 + lane, begin = blockIdx.x / groups * strip;
    u32 end = begin + strip < rows ? begin + strip : rows;
    float sum = 0;
    if (column < width) {
        for (u32 row = begin + warp; row < end; row += warps) {
            sum += load(gradient + (size_t)row * row_width + first + column);
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < width) {
        for (u32 other = 1; other < warps; ++other) sum += sums[other][lane];
        atomicAdd(to_bias + column, sum);
    }
}

// Norms of heads: RMSNorm of each head's query and key in rows [sequences, length, query | key | value]. `raw` [rows, query |
// key] keeps what was normalised.

/// One block handles one head of one row.
template <typename T>
__device__ void head_norm(T *rows, T *raw, const float *query_scale, const float *key_scale, u32 heads, u32 key_heads,
                          u32 head_width, float epsilon) {
    u32 normalised = heads + key_heads, slot = blockIdx.x % normalised;
    T *head = rows + ((size_t)(blockIdx.x / normalised) * (normalised + key_heads) + slot) * head_width;
    T *kept = raw + (size_t)blockIdx.x * head_width;
    const float *scale = slot < heads ? query_scale : key_scale;
    float squares = 0;
    for (u32 column = threadIdx.x; column < head_width; column += blockDim.x) {
        float value = load(head + column);
        squares += value * value;
    }
    float factor = rsqrtf(block_sum(squares) / head_width + epsilon);
    for (u32 column = threadIdx.x; column < head_width; column += blockDim.x) {
        kept[column] = head[column];
        store(head + column, load(head + column) * factor * scale[column]);
    }
}

/// Columns of a head that one thread sums: 1,024 with 256 threads.
#define HEAD_COLUMNS 4

/// Replaces the gradient of what was normalised by that of `raw`, and adds to the scales' where they have one. One block handles one head of a
/// strip of `strip` rows.
template <typename T>
__device__ void head_norm_backward(T *to_rows, const T *raw, const float *query_scale, const float *key_scale,
                                   float *to_query_scale, float *to_key_scale, u32 rows, u32 heads, u32 key_heads,
                                   u32 head_width, u32 strip, float epsilon) {
    u32 normalised = heads + key_heads, slot = blockIdx.x % normalised, begin = blockIdx.x / normalised * strip;
    u32 end = begin + strip < rows ? begin + strip : rows;
    const float *scale = slot < heads ? query_scale : key_scale;
    float sums[HEAD_COLUMNS] = {};
    for (u32 row = begin; row < end; ++row) {
        T *gradient = to_rows + ((size_t)row * (normalised + key_heads) + slot) * head_width;
        const T *input = raw + ((size_t)row * normalised + slot) * head_width;
        float squares = 0, product = 0;
        for (u32 column = threadIdx.x; column < head_width; column += blockDim.x) {
            float value = load(input + column);
            squares += value * value;
            product += load(gradient + column) * scale[column] * value;
        }
        float factor = rsqrtf(block_sum(squares) / head_width + epsilon);
        float shrink = block_sum(product) * factor * factor * factor / head_width;
        for (u32 part = 0; part < HEAD_COLUMNS; ++part) {
            u32 column = part * blockDim.x + threadIdx.x;
            if (column >= head_width) continue;
            float value = load(input + column), to_output = load(gradient + column);
            sums[part] += to_output * value * factor;
            store(gradient + column, to_output * scale[column] * factor - value * shrink);
        }
    }
    float *to_scale = slot < heads ? to_query_scale : to_key_scale;
    if (to_scale == nullptr) return;
    for (u32 part = 0; part < HEAD_COLUMNS; ++part) {
        u32 column = part * blockDim.x + threadIdx.x;
        if (column < head_width) atomicAdd(to_scale + column, sums[part]);
    }
}

// Heads: rows [sequences, length, query | key | value] to and from heads [sequences, heads, length, head width], with queries
// and keys turned by their position (RoPE), Hugging Face's halves of a head paired.

template <u32 COUNT, typename T>
__device__ void turn_heads(T *rows, T *query, T *key, T *value, const float *cosines, const float *sines, u32 length,
                           u32 heads, u32 key_heads, u32 half, bool backwards) {
    u32 position = blockIdx.x % length, sequence = blockIdx.x / length, slots = heads + 2 * key_heads;
    T *row = rows + (size_t)blockIdx.x * slots * 2 * half;
    for (u32 element = COUNT * threadIdx.x; element < slots * half; element += COUNT * blockDim.x) {
        u32 slot = element / half, pair = element % half;
        T *side = query;
        u32 head = slot, of = heads;
        bool turns = true;
        if (slot >= heads + key_heads) {
            side = value, head = slot - heads - key_heads, of = key_heads, turns = false;
        } else if (slot >= heads) {
            side = key, head = slot - heads, of = key_heads;
        }
        T *in_row = row + (size_t)slot * 2 * half + pair;
        T *in_head = side + (((size_t)sequence * of + head) * length + position) * 2 * half + pair;
        T *from = backwards ? in_head : in_row, *to = backwards ? in_row : in_head;
        auto first = load_all<COUNT>(from), second = load_all<COUNT>(from + half);
        if (turns) {
            auto cosine = load_all<COUNT>(cosines + (size_t)position * half + pair);
            auto sine = load_all<COUNT>(sines + (size_t)position * half + pair);
            for (u32 index = 0; index < COUNT; ++index) {
                float x = first.at[index], y = second.at[index], turn = backwards ? -sine.at[index] : sine.at[index];
                first.at[index] = x * cosine.at[index] - y * turn;
                second.at[index] = y * cosine.at[index] + x * turn;
            }
        }
        store_all(to, first);
        store_all(to + half, second);
    }
}

/// What attention gives, between heads and rows [sequences, length, heads · head width].
template <typename T>
__device__ void move_heads(T *rows, T *in_heads, u32 length, u32 heads, u32 head_width, bool to_heads) {
    u32 position = blockIdx.x % length, sequence = blockIdx.x / length;
    T *row = rows + (size_t)blockIdx.x * heads * head_width;
    for (u32 index = threadIdx.x; index < heads * head_width; index += blockDim.x) {
        size_t place = (((size_t)sequence * heads + index / head_width) * length + position) * head_width;
        T *in_head = in_heads + place + index % head_width;
        if (to_heads) {
            *in_head = row[index];
        } else {
            row[index] = *in_head;
        }
    }
}

// Attention: `scores` [units, queries, length] in place, of so many queries from `first` on; later positions are not seen, and
// none from `end` on is read.

template <u32 COUNT, typename T>
__device__ void causal_softmax(T *scores, u32 length, u32 queries, u32 first, u32 end, float scale) {
    u32 seen = first + blockIdx.x % queries + 1;
    T *row = scores + (size_t)blockIdx.x * length;
    float maximum = -INFINITY;
    for (u32 column = COUNT * threadIdx.x; column < seen; column += COUNT * blockDim.x) {
        auto values = load_all<COUNT>(row + column);
        for (u32 index = 0; index < COUNT; ++index) {
            if (column + index < seen) maximum = fmaxf(maximum, values.at[index]);
        }
    }
    maximum = block_max(maximum);
    float sum = 0;
    for (u32 column = COUNT * threadIdx.x; column < seen; column += COUNT * blockDim.x) {
        auto values = load_all<COUNT>(row + column);
        for (u32 index = 0; index < COUNT; ++index) {
            if (column + index < seen) sum += __expf((values.at[index] - maximum) * scale);
        }
    }
    float factor = 1 / block_sum(sum);
    for (u32 column = COUNT * threadIdx.x; column < end; column += COUNT * blockDim.x) {
        auto values = load_all<COUNT>(row + column);
        for (u32 index = 0; index < COUNT; ++index) {
            float probability = __expf((values.at[index] - maximum) * scale) * factor;
            values.at[index] = column + index < seen ? probability : 0;
        }
        store_all(row + column, values);
    }
}

/// Replaces the gradient by probabilities with that by scores.
template <u32 COUNT, typename T>
__device__ void causal_softmax_backward(const T *probabilities, T *gradient, u32 length, u32 queries, u32 first, u32 end,
                                        float scale) {
    u32 seen = first + blockIdx.x % queries + 1;
    probabilities += (size_t)blockIdx.x * length, gradient += (size_t)blockIdx.x * length;
    float product = 0;
    for (u32 column = COUNT * threadIdx.x; column < seen; column += COUNT * blockDim.x) {
        auto shares = load_all<COUNT>(probabilities + column), values = load_all<COUNT>(gradient + column);
        for (u32 index = 0; index < COUNT; ++index) {
            if (column + index < seen) product += shares.at[index] * values.at[index];
        }
    }
    product = block_sum(product);
    for (u32 column = COUNT * threadIdx.x; column < end; column += COUNT * blockDim.x) {
        auto shares = load_all<COUNT>(probabilities + column), values = load_all<COUNT>(gradient + column);
        for (u32 index = 0; index < COUNT; ++index) {
            float value = shares.at[index] * (values.at[index] - product) * scale;
            values.at[index] = column + index < seen ? value : 0;
        }
        store_all(gradient + column, values);
    }
}

#include "attention.cuh"

// SwiGLU: `gate_up` [rows, gate | up], `hidden` = gate · σ(gate) · up [rows, inner].

template <u32 COUNT, typename T> __device__ void swiglu(const T *gate_up, T *hidden, u32 inner) {
    const T *gates = gate_up + (size_t)blockIdx.x * 2 * inner, *ups = gates + inner;
    hidden += (size_t)blockIdx.x * inner;
    for (u32 column = COUNT * threadIdx.x; column < inner; column += COUNT * blockDim.x) {
        auto gate = load_all<COUNT>(gates + column), up = load_all<COUNT>(ups + column);
        for (u32 index = 0; index < COUNT; ++index) up.at[index] *= gate.at[index] * sigmoid(gate.at[index]);
        store_all(hidden + column, up);
    }
}

/// Replaces `gate_up` by its gradient, and fills `hidden` again, which may be `to_hidden`: a thread reads before it writes.
template <u32 COUNT, typename T> __device__ void swiglu_backward(T *gate_up, const T *to_hidden, T *hidden, u32 inner) {
    T *gates = gate_up + (size_t)blockIdx.x * 2 * inner, *ups = gates + inner;
    hidden += (size_t)blockIdx.x * inner, to_hidden += (size_t)blockIdx.x * inner;
    for (u32 column = COUNT * threadIdx.x; column < inner; column += COUNT * blockDim.x) {
        auto gate = load_all<COUNT>(gates + column), up = load_all<COUNT>(ups + column);
        auto gradient = load_all<COUNT>(to_hidden + column), product = gate;
        for (u32 index = 0; index < COUNT; ++index) {
            float share = sigmoid(gate.at[index]), activated = gate.at[index] * share;
            product.at[index] = activated * up.at[index];
            gate.at[index] = gradient.at[index] * up.at[index] * share * (1 + gate.at[index] * (1 - share));
            up.at[index] = gradient.at[index] * activated;
        }
        store_all(hidden + column, product);
        store_all(gates + column, gate);
        store_all(ups + column, up);
    }
}

// Loss: `logits` [rows, classes].

/// Each row's −ln softmax(logits)[target], and whether the target is the likeliest: of several that are, the first is, as on the CPU. Where `share` is not zero, logits become
/// the gradient of `share` times the sum of losses.
template <typename T>
__device__ void cross_entropy(T *logits, const u32 *targets, float *losses, float *hits, u32 classes, float share) {
    T *row = logits + (size_t)blockIdx.x * classes;
    u32 target = targets[blockIdx.x];
    float right = load(row + target), maximum = -INFINITY;
    for (u32 column = threadIdx.x; column < classes; column += blockDim.x) maximum = fmaxf(maximum, load(row + column));
    maximum = block_max(maximum);
    float sum = 0, before = 0;
    for (u32 column = threadIdx.x; column < classes; column += blockDim.x) {
        float value = load(row + column);
        sum += expf(value - maximum);
        if (column < target && value == maximum) before = 1;
    }
    sum = block_sum(sum);
    before = block_max(before);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = logf(sum) + (maximum - right);
        hits[blockIdx.x] = right == maximum && before == 0 ? 1 : 0;
    }
    if (share == 0) return;
    for (u32 column = threadIdx.x; column < classes; column += blockDim.x) {
        float probability = expf(load(row + column) - maximum) / sum;
        store(row + column, share * (probability - (column == target ? 1 : 0)));
    }
}

// Sums in a fixed order: block b adds every `blocks`-th run of threads, the host adds the blocks' results.

extern "C" __global__ void sum_values(const float *values, double *sums, size_t count, u32 blocks) {
    double sum = 0;
    for (size_t index = element(); index < count; index += (size_t)blocks * blockDim.x) sum += values[index];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" __global__ void sum_squares(const float *values, double *sums, size_t count, u32 blocks) {
    double sum = 0;
    for (size_t index = element(); index < count; index += (size_t)blocks * blockDim.x) {
        sum += (double)values[index] * values[index];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// One thread for each value.

extern "C" __global__ void to_bf16(const float *values, bf16 *rounded, size_t count) {
    size_t index = element();
    if (index < count) store(rounded + index, values[index]);
}

extern "C" __global__ void add(float *values, const float *added, size_t count) {
    size_t index = element();
    if (index < count) values[index] += added[index];
}

/// `values` ← `count` values of a matrix in 8 bits, from its value `first` on. A thread decodes four, which are of one block and lie
/// aligned where these numbers and the places of `values` are multiples of four.
template <typename T>
__device__ void decode(const signed char *codes, const bf16 *scales, T *values, size_t first, size_t count) {
    size_t begin = 4 * element();
    if (begin >= count) return;
    if (first % 4 == 0 && count % 4 == 0 && (size_t)values % (4 * sizeof(T)) == 0) {
        u32 four = *(const u32 *)(codes + first + begin);
        float scale = load(scales + (first + begin) / 64);
        Values<4> decoded;
        for (u32 index = 0; index < 4; ++index) decoded.at[index] = (signed char)(four >> 8 * index) * scale;
        store_all<4>(values + begin, decoded);
        return;
    }
    for (size_t index = begin; index < begin + 4 && index < count; ++index) {
        size_t from = first + index;
        store(values + index, codes[from] * load(scales + from / 64));
    }
}

/// Muon's momentum with the gradient scaled by `added`, and its step ahead (`look_ahead` in `optimizer/muon.rs`).
extern "C" __global__ void muon_look_ahead(const float *gradient, float *mean, float *update, size_t count, float decay,
                                      float added) {
    size_t index = element();
    if (index >= count) return;
    float scaled = added * gradient[index];
    float next = decay * mean[index] + scaled;
    mean[index] = next;
    update[index] = decay * next + scaled;
}

/// The sums of `sum_squares`, added up in the first one.
extern "C" __global__ void muon_norm(double *sums, u32 blocks) {
    if (element() != 0) return;
    for (u32 block = 1; block < blocks; block++) sums[0] += sums[block];
}

/// Divides by the root of a sum of squares.
extern "C" __global__ void muon_normalise(float *values, const double *sum, size_t count, float least) {
    size_t index = element();
    if (index < count) values[index] *= 1 / ((float)sqrt(*sum) + least);
}

/// `a + b·gram` of a square matrix.
extern "C" __global__ void muon_polynomial(const float *gram, float *factor, u32 side, float a, float b) {
    size_t index = element();
    if (index < (size_t)side * side) factor[index] = b * gram[index] + (index % (side + 1) == 0 ? a : 0);
}

extern "C" __global__ void muon_step(float *values, const float *update, size_t count, float keep, float rate) {
    size_t index = element();
    if (index < count) values[index] = values[index] * keep - rate * update[index];
}

/// `average ← decay·average + added·gradient`.
extern "C" __global__ void blend_gradients(float *average, const float *gradient, size_t count, float decay, float added) {
    size_t index = element();
    if (index < count) average[index] = decay * average[index] + added * gradient[index];
}

struct AdamW {
    float clip, unbias, beta1, beta2, new1, new2, rate, keep, unbias_second, epsilon;
};

/// The step of `COUNT` values, which are also written as products read them where `rounded` is not null.
template <u32 COUNT>
__device__ void step_adamw(float *values, bf16 *rounded, const float *gradient, const float *squared, float *first,
                           float *second, const AdamW &by) {
    auto stepped = load_all<COUNT>(values), means = load_all<COUNT>(first), squares = load_all<COUNT>(second);
    auto gradients = load_all<COUNT>(gradient), seen = load_all<COUNT>(squared);
    for (u32 index = 0; index < COUNT; ++index) {
        float clipped = gradients.at[index] * by.clip;
        float mean = by.beta1 * means.at[index] + by.new1 * clipped;
        float unbiased = seen.at[index] * by.unbias;
        float square = by.beta2 * squares.at[index] + by.new2 * unbiased * unbiased;
        means.at[index] = mean;
        squares.at[index] = square;
        float step = by.rate * mean / (sqrtf(square * by.unbias_second) + by.epsilon);
        stepped.at[index] = stepped.at[index] * by.keep - step;
    }
    store_all<COUNT>(values, stepped);
    store_all<COUNT>(first, means);
    store_all<COUNT>(second, squares);
    if (rounded) store_all<COUNT>(rounded, stepped);
}

/// Whether four values of four bytes each lie together from there on.
__device__ inline bool is_aligned(const void *place) { return (size_t)place % 16 == 0; }

/// AdamW with the gradient clipped by a factor, and the second moment of `squared` times `unbias` (`step_values` and
/// `step_matched` in `optimizer/adamw.rs`). A thread steps four values.
extern "C" __global__ void adamw(float *values, bf16 *rounded, const float *gradient, const float *squared, float *first,
                                 float *second, size_t count, float clip, float unbias, float beta1, float beta2,
                                 float new1, float new2, float rate, float keep, float unbias_second, float epsilon) {
    AdamW by = {clip, unbias, beta1, beta2, new1, new2, rate, keep, unbias_second, epsilon};
    size_t begin = 4 * element();
    if (begin >= count) return;
    bool aligned = is_aligned(values) && is_aligned(gradient) && is_aligned(squared) && is_aligned(first) &&
                   is_aligned(second) && (size_t)rounded % 8 == 0 && count % 4 == 0;
    if (aligned) {
        step_adamw<4>(values + begin, rounded ? rounded + begin : nullptr, gradient + begin, squared + begin,
                      first + begin, second + begin, by);
        return;
    }
    for (size_t index = begin; index < begin + 4 && index < count; ++index) {
        step_adamw<1>(values + index, rounded ? rounded + index : nullptr, gradient + index, squared + index,
                      first + index, second + index, by);
    }
}

#define BY_FOUR(width, kernel, ...)                                                                                    \
    if (width % 4 == 0) {                                                                                              \
        kernel<4>(__VA_ARGS__);                                                                                        \
    } else {                                                                                                           \
        kernel<1>(__VA_ARGS__);                                                                                        \
    }

#define FOR(T)                                                                                                         \
    extern "C" __global__ void decode_##T(const signed char *codes, const bf16 *scales, T *values, size_t first,       \
                                          size_t count) {                                                              \
        decode(codes, scales, values, first, count);                                                                   \
    }                                                                                                                  \
    extern "C" __global__ void rms_norm_##T(const float *input, const float *scale, T *output, u32 width,              \
                                            float epsilon) {                                                           \
        BY_FOUR(width, rms_norm, input, scale, output, width, epsilon);                                                \
    }                                                                                                                  \
    extern "C" __global__ void add_bias_##T(T *values, const float *bias, u32 row_width, u32 first, u32 width) {       \
        add_bias(values, bias, row_width, first, width);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void bias_backward_##T(const T *gradient, float *to_bias, u32 rows, u32 row_width,           \
                                                 u32 first, u32 width, u32 strip) {                                    \
        bias_backward(gradient, to_bias, rows, row_width, first, width, strip);                                        \
    }                                                                                                                  \
    extern "C" __global__ void head_norm_##T(T *rows, T *raw, const float *query_scale, const float *key_scale,        \
                                             u32 heads, u32 key_heads, u32 head_width, float epsilon) {                \
        head_norm(rows, raw, query_scale, key_scale, heads, key_heads, head_width, epsilon);                           \
    }                                                                                                                  \
    extern "C" __global__ void head_norm_backward_##T(T *to_rows, const T *raw, const float *query_scale,              \
                                                      const float *key_scale, float *to_query_scale,                   \
                                                      float *to_key_scale, u32 rows, u32 heads, u32 key_heads,         \
                                                      u32 head_width, u32 strip, float epsilon) {                      \
        head_norm_backward(to_rows, raw, query_scale, key_scale, to_query_scale, to_key_scale, rows, heads, key_heads, \
                           head_width, strip, epsilon);                                                                \
    }                                                                                                                  \
    extern "C" __global__ void turn_heads_##T(T *rows, T *query, T *key, T *value, const float *cosines,               \
                                              const float *sines, u32 length, u32 heads, u32 key_heads, u32 half,      \
                                              u32 backwards) {                                                         \
        BY_FOUR(half, turn_heads, rows, query, key, value, cosines, sines, length, heads, key_heads, half,             \
                backwards != 0);                                                                                       \
    }                                                                                                                  \
    extern "C" __global__ void move_heads_##T(T *rows, T *in_heads, u32 length, u32 heads, u32 head_width,             \
                                              u32 to_heads) {                                                          \
        move_heads(rows, in_heads, length, heads, head_width, to_heads != 0);                                          \
    }                                                                                                                  \
    extern "C" __global__ void causal_softmax_##T(T *scores, u32 length, u32 queries, u32 first, u32 end,              \
                                                  float scale) {                                                       \
        BY_FOUR(length, causal_softmax, scores, length, queries, first, end, scale);                                   \
    }                                                                                                                  \
    extern "C" __global__ void causal_softmax_backward_##T(const T *probabilities, T *gradient, u32 length, u32 queries,\
                                                           u32 first, u32 end, float scale) {                          \
        BY_FOUR(length, causal_softmax_backward, probabilities, gradient, length, queries, first, end, scale);         \
    }                                                                                                                  \
    extern "C" __global__ void swiglu_##T(const T *gate_up, T *hidden, u32 inner) {                                    \
        BY_FOUR(inner, swiglu, gate_up, hidden, inner);                                                                \
    }                                                                                                                  \
    extern "C" __global__ void swiglu_backward_##T(T *gate_up, const T *to_hidden, T *hidden, u32 inner) {             \
        BY_FOUR(inner, swiglu_backward, gate_up, to_hidden, hidden, inner);                                            \
    }                                                                                                                  \
    extern "C" __global__ void add_and_norm_##T(const float *stream, const T *added, float *sum, const float *scale,   \
                                                T *output, u32 width, float epsilon) {                                 \
        BY_FOUR(width, add_and_norm, stream, added, sum, scale, output, width, epsilon);                               \
    }                                                                                                                  \
    extern "C" __global__ void rms_norm_backward_##T(const float *input, const float *scale, const T *to_output,       \
                                                     float *to_input, T *rounded, float *to_scale, u32 rows,           \
                                                     u32 width, float epsilon) {                                       \
        BY_FOUR(width, rms_norm_backward, input, scale, to_output, to_input, rounded, to_scale, rows, width, epsilon); \
    }                                                                                                                  \
    extern "C" __global__ void cross_entropy_##T(T *logits, const u32 *targets, float *losses, float *hits,            \
                                                 u32 classes, float share) {                                           \
        cross_entropy(logits, targets, losses, hits, classes, share);                                                  \
    }

FOR(float)
FOR(bf16)
