// Causal attention in bfloat16 on tensor cores, after FlashAttention-2 (Dao 2023, arXiv:2307.08691): scores stay in
// registers, and backward computes them again from the queries, the keys and each row's logarithm of its sum.
//
// Heads are [sequences, heads, length, WIDTH], what attention gives lies in rows [sequences, length, heads · WIDTH]. A warp
// has 16 rows of its own (queries, or keys in `attend_backward_keys`), a block those of its warps; tiles of TILE rows of the
// other side pass through shared memory. `units` are sequences · heads (or key heads), `length` tokens of each.
//
// Fragments of `multiply_add`: a lane holds, of the 16 × 8 result, rows lane / 4 and that + 8, columns 2 · (lane % 4) and
// the next one. Two such results side by side, rounded, are the left operand of the next product.

/// 8 more values in each row keep the rows that `load_matrices` reads at once in different banks.
#define PADDED(WIDTH) (WIDTH + 8)

#define LOG2_E 1.44269504f

/// Begins to copy TILE rows from `first` on to shared memory; those from `length` on are zero.
template <u32 WIDTH, u32 TILE>
__device__ void begin_tile(bf16 *tile, const bf16 *rows, u32 first, u32 length, size_t stride) {
    for (u32 index = threadIdx.x; index < TILE * WIDTH / 8; index += blockDim.x) {
        u32 row = index / (WIDTH / 8), column = index % (WIDTH / 8) * 8;
        bool exists = first + row < length;
        copy_beside(tile + row * PADDED(WIDTH) + column, rows + (exists ? first + row : 0) * stride + column, exists);
    }
}

/// The left operand's fragments of 16 rows, of which this lane has `row` and `row` + 8.
template <u32 WIDTH>
__device__ void load_rows(u32 (&fragments)[WIDTH / 16][4], const bf16 *rows, u32 row, u32 length, size_t stride) {
#pragma unroll
    for (u32 part = 0; part < WIDTH / 16; ++part) {
#pragma unroll
        for (u32 index = 0; index < 4; ++index) {
            u32 at = row + index % 2 * 8, column = part * 16 + index / 2 * 8 + threadIdx.x % 4 * 2;
            fragments[part][index] = at < length ? *(const u32 *)(rows + at * stride + column) : 0;
        }
    }
}

/// Writes 16 rows of results times `factors`, those below `length`.
template <u32 WIDTH>
__device__ void store_rows(bf16 *rows, const float (&results)[WIDTH / 8][4], u32 row, u32 length, size_t stride,
                           const float (&factors)[2]) {
#pragma unroll
    for (u32 part = 0; part < WIDTH / 8; ++part) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            u32 at = row + half * 8, column = part * 8 + threadIdx.x % 4 * 2;
            if (at >= length) continue;
            u32 pair = pack(results[part][2 * half] * factors[half], results[part][2 * half + 1] * factors[half]);
            *(u32 *)(rows + at * stride + column) = pair;
        }
    }
}

/// `scores` = own rows · tileᵀ.
template <u32 WIDTH, u32 TILE>
__device__ void multiply_transposed(float (&scores)[TILE / 8][4], const u32 (&own)[WIDTH / 16][4], const bf16 *tile) {
    u32 lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
    for (u32 at = 0; at < TILE / 8; ++at) {
#pragma unroll
        for (u32 index = 0; index < 4; ++index) scores[at][index] = 0;
    }
#pragma unroll
    for (u32 part = 0; part < WIDTH / 16; ++part) {
#pragma unroll
        for (u32 at = 0; at < TILE / 16; ++at) {
            u32 right[4];
            load_matrices(right, tile + (at * 16 + row) * PADDED(WIDTH) + part * 16 + column, false);
            multiply_add(scores[2 * at], own[part], right[0], right[1]);
            multiply_add(scores[2 * at + 1], own[part], right[2], right[3]);
        }
    }
}

/// `sums` += `weights`, rounded, · tile.
template <u32 WIDTH, u32 TILE>
__device__ void multiply_onto(float (&sums)[WIDTH / 8][4], const float (&weights)[TILE / 8][4], const bf16 *tile) {
    u32 lane = threadIdx.x % 32, row = lane % 16, column = lane / 16 * 8;
#pragma unroll
    for (u32 at = 0; at < TILE / 16; ++at) {
        const float(&low)[4] = weights[2 * at], (&high)[4] = weights[2 * at + 1];
        u32 left[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]), pack(high[2], high[3])};
#pragma unroll
        for (u32 part = 0; part < WIDTH / 16; ++part) {
            u32 right[4];
            load_matrices(right, tile + (at * 16 + row) * PADDED(WIDTH) + part * 16 + column, true);
            multiply_add(sums[2 * part], left, right[0], right[1]);
            multiply_add(sums[2 * part + 1], left, right[2], right[3]);
        }
    }
}

/// Over the four lanes that share two rows.
__device__ inline float row_sum(float value) {
    value += __shfl_xor_sync(0xffffffff, value, 1);
    return value + __shfl_xor_sync(0xffffffff, value, 2);
}

__device__ inline float row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

/// Where a block works: blocks with the most tiles come first.
struct Place {
    u32 unit, sequence, head, key_unit, first, row, tiles;
};

/// Of a block that has queries, whose tiles are of keys.
__device__ inline Place place_of_queries(u32 length, u32 heads, u32 key_heads, u32 units, u32 tile) {
    Place place;
    u32 rows = blockDim.x / 2, blocks = (length + rows - 1) / rows;
    u32 begin = (blocks - 1 - blockIdx.x / units) * rows, end = begin + rows < length ? begin + rows : length;
    place.unit = blockIdx.x % units;
    place.sequence = place.unit / heads;
    place.head = place.unit % heads;
    place.key_unit = place.sequence * key_heads + place.head / (heads / key_heads);
    place.first = begin + threadIdx.x / 32 * 16;
    place.row = place.first + threadIdx.x % 32 / 4;
    place.tiles = (end + tile - 1) / tile;
    return place;
}

/// Begins to copy the keys and values of the tile after this one, where there is one, and waits for this one's.
template <u32 WIDTH, u32 TILE>
__device__ void arrive_at_tile(bf16 (&keys)[2][TILE * PADDED(WIDTH)], bf16 (&values)[2][TILE * PADDED(WIDTH)],
                               const bf16 *key, const bf16 *value, u32 tile, u32 tiles, u32 length) {
    u32 next = tile + 1;
    if (next < tiles) {
        begin_tile<WIDTH, TILE>(keys[next % 2], key, next * TILE, length, WIDTH);
        begin_tile<WIDTH, TILE>(values[next % 2], value, next * TILE, length, WIDTH);
    }
    end_copies();
    wait_for_copies_but_last();
    __syncthreads();
}

/// Fills `output` and `log_sums` [units, length]: log₂ of each row's sum of e^score.
template <u32 WIDTH, u32 TILE>
__device__ void attend(const bf16 *query, const bf16 *key, const bf16 *value, bf16 *output, float *log_sums, u32 length,
                       u32 heads, u32 key_heads, u32 units, float scale) {
    __shared__ __align__(16) bf16 keys[2][TILE * PADDED(WIDTH)], values[2][TILE * PADDED(WIDTH)];
    Place place = place_of_queries(length, heads, key_heads, units, TILE);
    const size_t of_head = (size_t)length * WIDTH;
    key += place.key_unit * of_head, value += place.key_unit * of_head;
    u32 queries[WIDTH / 16][4];
    load_rows<WIDTH>(queries, query + place.unit * of_head, place.row, length, WIDTH);
    float sums[WIDTH / 8][4] = {}, maxima[2] = {-INFINITY, -INFINITY}, totals[2] = {}, factor = scale * LOG2_E;
    begin_tile<WIDTH, TILE>(keys[0], key, 0, length, WIDTH);
    begin_tile<WIDTH, TILE>(values[0], value, 0, length, WIDTH);
    end_copies();
    for (u32 tile = 0; tile < place.tiles; ++tile) {
        u32 begin = tile * TILE;
        arrive_at_tile<WIDTH, TILE>(keys, values, key, value, tile, place.tiles, length);
        if (begin <= place.first + 15) {
            float scores[TILE / 8][4];
            multiply_transposed<WIDTH, TILE>(scores, queries, keys[tile % 2]);
            if (begin + TILE > place.first) {
#pragma unroll
                for (u32 at = 0; at < TILE / 8; ++at) {
#pragma unroll
                    for (u32 index = 0; index < 4; ++index) {
                        u32 column = begin + at * 8 + threadIdx.x % 4 * 2 + index % 2;
                        if (column > place.row + index / 2 * 8) scores[at][index] = -INFINITY;
                    }
                }
            }
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                float maximum = maxima[half];
#pragma unroll
                for (u32 at = 0; at < TILE / 8; ++at) {
                    maximum = fmaxf(maximum, fmaxf(scores[at][2 * half], scores[at][2 * half + 1]));
                }
                maximum = row_max(maximum);
                float shrink = power_of_two((maxima[half] - maximum) * factor), total = 0;
                maxima[half] = maximum;
#pragma unroll
                for (u32 at = 0; at < TILE / 8; ++at) {
#pragma unroll
                    for (u32 index = 2 * half; index < 2 * half + 2; ++index) {
                        scores[at][index] = power_of_two((scores[at][index] - maximum) * factor);
                        total += scores[at][index];
                    }
                }
                totals[half] = totals[half] * shrink + total;
#pragma unroll
                for (u32 part = 0; part < WIDTH / 8; ++part) {
                    sums[part][2 * half] *= shrink, sums[part][2 * half + 1] *= shrink;
                }
            }
            multiply_onto<WIDTH, TILE>(sums, scores, values[tile % 2]);
        }
        __syncthreads();
    }
    float factors[2];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        float total = row_sum(totals[half]);
        factors[half] = 1 / total;
        u32 row = place.row + half * 8;
        if (threadIdx.x % 4 == 0 && row < length) {
            log_sums[(size_t)place.unit * length + row] = maxima[half] * factor + log2f(total);
        }
    }
    output += (size_t)place.sequence * length * heads * WIDTH + place.head * WIDTH;
    store_rows<WIDTH>(output, sums, place.row, length, (size_t)heads * WIDTH, factors);
}

/// Fills the gradient of queries, and `products` [units, length]: each row's output · its gradient.
template <u32 WIDTH, u32 TILE>
__device__ void attend_backward_queries(const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *output,
                                        const bf16 *to_output, const float *log_sums, float *products, bf16 *to_query,
                                        u32 length, u32 heads, u32 key_heads, u32 units, float scale) {
    __shared__ __align__(16) bf16 keys[2][TILE * PADDED(WIDTH)], values[2][TILE * PADDED(WIDTH)];
    Place place = place_of_queries(length, heads, key_heads, units, TILE);
    const size_t of_head = (size_t)length * WIDTH, in_rows = (size_t)heads * WIDTH;
    const size_t corner = (size_t)place.sequence * length * in_rows + place.head * WIDTH;
    key += place.key_unit * of_head, value += place.key_unit * of_head;
    begin_tile<WIDTH, TILE>(keys[0], key, 0, length, WIDTH);
    begin_tile<WIDTH, TILE>(values[0], value, 0, length, WIDTH);
    end_copies();
    u32 queries[WIDTH / 16][4], to_outputs[WIDTH / 16][4];
    load_rows<WIDTH>(queries, query + place.unit * of_head, place.row, length, WIDTH);
    load_rows<WIDTH>(to_outputs, to_output + corner, place.row, length, in_rows);
    float own_products[2] = {}, own_sums[2] = {};
#pragma unroll
    for (u32 part = 0; part < WIDTH / 16; ++part) {
#pragma unroll
        for (u32 index = 0; index < 4; ++index) {
            u32 row = place.row + index % 2 * 8, column = part * 16 + index / 2 * 8 + threadIdx.x % 4 * 2;
            if (row >= length) continue;
            const bf16 *at = output + corner + row * in_rows + column;
            u32 pair = to_outputs[part][index];
            own_products[index % 2] += load(at) * lower(pair) + load(at + 1) * upper(pair);
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        own_products[half] = row_sum(own_products[half]);
        u32 row = place.row + half * 8;
        if (row >= length) continue;
        own_sums[half] = log_sums[(size_t)place.unit * length + row];
        if (threadIdx.x % 4 == 0) products[(size_t)place.unit * length + row] = own_products[half];
    }
    float sums[WIDTH / 8][4] = {}, factor = scale * LOG2_E;
    for (u32 tile = 0; tile < place.tiles; ++tile) {
        u32 begin = tile * TILE;
        arrive_at_tile<WIDTH, TILE>(keys, values, key, value, tile, place.tiles, length);
        if (begin <= place.first + 15) {
            float scores[TILE / 8][4], gradients[TILE / 8][4];
            multiply_transposed<WIDTH, TILE>(scores, queries, keys[tile % 2]);
            multiply_transposed<WIDTH, TILE>(gradients, to_outputs, values[tile % 2]);
            bool all_see = begin + TILE <= place.first + 1;
#pragma unroll
            for (u32 at = 0; at < TILE / 8; ++at) {
#pragma unroll
                for (u32 index = 0; index < 4; ++index) {
                    u32 column = begin + at * 8 + threadIdx.x % 4 * 2 + index % 2, half = index / 2;
                    bool sees = all_see || column <= place.row + half * 8;
                    float probability = power_of_two(scores[at][index] * factor - own_sums[half]);
                    gradients[at][index] = sees ? probability * (gradients[at][index] - own_products[half]) : 0;
                }
            }
            multiply_onto<WIDTH, TILE>(sums, gradients, keys[tile % 2]);
        }
        __syncthreads();
    }
    const float factors[2] = {scale, scale};
    store_rows<WIDTH>(to_query + place.unit * of_head, sums, place.row, length, WIDTH, factors);
}

/// Fills the gradients of keys and values. Blocks have keys, tiles are of the queries of each head that shares them.
template <u32 WIDTH, u32 TILE>
__device__ void attend_backward_keys(const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *to_output,
                                     const float *log_sums, const float *products, bf16 *to_key, bf16 *to_value,
                                     u32 length, u32 heads, u32 key_heads, u32 units, float scale) {
    __shared__ __align__(16) bf16 queries[2][TILE * PADDED(WIDTH)], to_outputs[2][TILE * PADDED(WIDTH)];
    __shared__ float tile_sums[2][TILE], tile_products[2][TILE];
    const u32 unit = blockIdx.x % units, block = blockIdx.x / units * (blockDim.x / 2), sharing = heads / key_heads;
    const u32 first = block + threadIdx.x / 32 * 16, row = first + threadIdx.x % 32 / 4;
    const u32 first_head = unit / key_heads * heads + unit % key_heads * sharing;
    const u32 first_tile = block / TILE, tiles = (length + TILE - 1) / TILE - first_tile;
    const size_t of_head = (size_t)length * WIDTH, in_rows = (size_t)heads * WIDTH;
    auto begin_tiles = [&](u32 turn) {
        u32 head = first_head + turn / tiles, begin = (first_tile + turn % tiles) * TILE;
        const bf16 *rows = to_output + head / heads * length * in_rows + head % heads * WIDTH;
        begin_tile<WIDTH, TILE>(queries[turn % 2], query + head * of_head, begin, length, WIDTH);
        begin_tile<WIDTH, TILE>(to_outputs[turn % 2], rows, begin, length, in_rows);
        if (threadIdx.x < TILE) {
            bool exists = begin + threadIdx.x < length;
            size_t row = (size_t)head * length + (exists ? begin + threadIdx.x : 0);
            copy_beside(tile_sums[turn % 2] + threadIdx.x, log_sums + row, exists);
            copy_beside(tile_products[turn % 2] + threadIdx.x, products + row, exists);
        }
    };
    begin_tiles(0);
    end_copies();
    u32 keys[WIDTH / 16][4], values[WIDTH / 16][4];
    load_rows<WIDTH>(keys, key + unit * of_head, row, length, WIDTH);
    load_rows<WIDTH>(values, value + unit * of_head, row, length, WIDTH);
    float key_sums[WIDTH / 8][4] = {}, value_sums[WIDTH / 8][4] = {}, factor = scale * LOG2_E;
    for (u32 turn = 0; turn < sharing * tiles; ++turn) {
        if (turn + 1 < sharing * tiles) begin_tiles(turn + 1);
        end_copies();
        wait_for_copies_but_last();
        __syncthreads();
        u32 begin = (first_tile + turn % tiles) * TILE;
        if (begin + TILE > first) {
            float weights[TILE / 8][4], gradients[TILE / 8][4];
            multiply_transposed<WIDTH, TILE>(weights, keys, queries[turn % 2]);
            multiply_transposed<WIDTH, TILE>(gradients, values, to_outputs[turn % 2]);
            bool all_see = begin >= first + 15 && begin + TILE <= length;
#pragma unroll
            for (u32 at = 0; at < TILE / 8; ++at) {
#pragma unroll
                for (u32 index = 0; index < 4; ++index) {
                    u32 column = at * 8 + threadIdx.x % 4 * 2 + index % 2, query = begin + column;
                    bool sees = all_see || (query < length && query >= row + index / 2 * 8);
                    float weight = power_of_two(weights[at][index] * factor - tile_sums[turn % 2][column]);
                    float product = tile_products[turn % 2][column];
                    weights[at][index] = sees ? weight : 0;
                    gradients[at][index] = weights[at][index] * (gradients[at][index] - product);
                }
            }
            multiply_onto<WIDTH, TILE>(value_sums, weights, to_outputs[turn % 2]);
            multiply_onto<WIDTH, TILE>(key_sums, gradients, queries[turn % 2]);
        }
        __syncthreads();
    }
    const float factors[2] = {scale, scale}, ones[2] = {1, 1};
    store_rows<WIDTH>(to_key + unit * of_head, key_sums, row, length, WIDTH, factors);
    store_rows<WIDTH>(to_value + unit * of_head, value_sums, row, length, WIDTH, ones);
}

#define ATTEND(WIDTH, TILE, TILE_OF_QUERIES, TILE_OF_KEYS, AT_ONCE)                                                    \
    extern "C" __global__ void __launch_bounds__(256, AT_ONCE)                                                         \
        attend_##WIDTH(const bf16 *query, const bf16 *key, const bf16 *value, bf16 *output, float *log_sums,           \
                       u32 length, u32 heads, u32 key_heads, u32 units, float scale) {                                 \
        attend<WIDTH, TILE>(query, key, value, output, log_sums, length, heads, key_heads, units, scale);              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, AT_ONCE) attend_backward_queries_##WIDTH(                        \
        const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *output, const bf16 *to_output,              \
        const float *log_sums, float *products, bf16 *to_query, u32 length, u32 heads, u32 key_heads, u32 units,       \
        float scale) {                                                                                                 \
        attend_backward_queries<WIDTH, TILE_OF_QUERIES>(query, key, value, output, to_output, log_sums, products,      \
                                                        to_query, length, heads, key_heads, units, scale);             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, AT_ONCE) attend_backward_keys_##WIDTH(                           \
        const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *to_output, const float *log_sums,           \
        const float *products, bf16 *to_key, bf16 *to_value, u32 length, u32 heads, u32 key_heads, u32 units,          \
        float scale) {                                                                                                 \
        attend_backward_keys<WIDTH, TILE_OF_KEYS>(query, key, value, to_output, log_sums, products, to_key, to_value,  \
                                                  length, heads, key_heads, units, scale);                             \
    }

// (width of a head, rows of a tile of `attend`, of the two backward; blocks that a multiprocessor has at once)
ATTEND(32, 64, 64, 64, 2)
ATTEND(64, 64, 32, 32, 2)
ATTEND(128, 32, 32, 16, 1)
