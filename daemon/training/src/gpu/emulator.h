// Runs `kernels.cu` on the CPU, for tests: blocks one after the other, a block's threads as coroutines in turn.
//
// A thread runs until it meets a barrier. That all threads of a block meet the same ones is checked, and a barrier that is
// missing shows in the results, because threads take turns in one order and in the other.

#include <cmath>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
// Blocks run one at a time, so what a block shares may be what all share.
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx, blockDim;

/// The upper half of a float, rounded to nearest, ties to even.
struct __nv_bfloat16 {
    unsigned short bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
    unsigned bits = (unsigned)value.bits << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

inline __nv_bfloat16 __float2bfloat16(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);
    return {(unsigned short)(bits >> 16)};
}

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};

inline float __expf(float value) { return expf(value); }
inline float __fdividef(float left, float right) { return left / right; }
inline float rsqrtf(float value) { return 1 / sqrtf(value); }

inline float atomicAdd(float *place, float value) {
    float before = *place;
    *place += value;
    return before;
}

const unsigned THREADS_MAX = 1024, WARP = 32, STACK = 64 << 10;

static ucontext_t scheduler, first_entry[THREADS_MAX];
static jmp_buf in_scheduler, in_thread[THREADS_MAX];
static unsigned barriers_met[THREADS_MAX];
static bool started[THREADS_MAX], ended[THREADS_MAX], at_barrier[THREADS_MAX];
static double exchanged[THREADS_MAX];

/// Back to the scheduler, until it is this thread's turn again.
inline void yield() {
    if (_setjmp(in_thread[threadIdx.x]) == 0) _longjmp(in_scheduler, 1);
}

inline void __syncthreads() {
    ++barriers_met[threadIdx.x];
    at_barrier[threadIdx.x] = true;
    yield();
}

/// All threads of a warp take part, as in every call there is. Other warps go on meanwhile, as on a GPU.
template <typename V> V __shfl_xor_sync(unsigned, V value, int distance) {
    unsigned thread = threadIdx.x;
    exchanged[thread] = value;
    yield();
    V received = (V)exchanged[thread ^ distance];
    yield();
    return received;
}

inline unsigned pack(float low, float high) {
    return (unsigned)__float2bfloat16(high).bits << 16 | __float2bfloat16(low).bits;
}

inline float power_of_two(float value) { return exp2f(value); }

inline float lower(unsigned pair) { return __bfloat162float({(unsigned short)pair}); }
inline float upper(unsigned pair) { return __bfloat162float({(unsigned short)(pair >> 16)}); }

/// What each thread gives the others of its warp.
static unsigned given[THREADS_MAX][6];
static const __nv_bfloat16 *given_row[THREADS_MAX];

/// As PTX defines `mma.m16n8k16`.
inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    unsigned thread = threadIdx.x, warp = thread / WARP * WARP, lane = thread % WARP;
    memcpy(given[thread], a, sizeof a);
    given[thread][4] = b0, given[thread][5] = b1;
    yield();
    auto value = [&](unsigned of, unsigned word, unsigned half) {
        return __bfloat162float({(unsigned short)(given[warp + of][word] >> 16 * half)});
    };
    for (unsigned index = 0; index < 4; ++index) {
        unsigned row = lane / 4 + index / 2 * 8, column = lane % 4 * 2 + index % 2;
        for (unsigned inner = 0; inner < 16; ++inner) {
            unsigned pair = inner % 8 / 2, upper = inner / 8;
            float left = value(row % 8 * 4 + pair, row / 8 + 2 * upper, inner % 2);
            sums[index] += left * value(column * 4 + pair, 4 + upper, inner % 2);
        }
    }
    yield();
}

/// As PTX defines `ldmatrix`.
inline void load_matrices(unsigned (&matrices)[4], const __nv_bfloat16 *row, bool transposed) {
    unsigned thread = threadIdx.x, warp = thread / WARP * WARP, lane = thread % WARP;
    if ((size_t)row % 16 != 0) fprintf(stderr, "a matrix's row is not aligned to 16 bytes\n"), abort();
    given_row[thread] = row;
    yield();
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        unsigned halves[2];
        for (unsigned half = 0; half < 2; ++half) {
            unsigned row = lane / 4, column = lane % 4 * 2 + half;
            if (transposed) std::swap(row, column);
            halves[half] = given_row[warp + matrix * 8 + row][column].bits;
        }
        matrices[matrix] = halves[1] << 16 | halves[0];
    }
    yield();
}

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
    bool exists;

    void act() const {
        if (exists) {
            memcpy(to, from, bytes);
        } else {
            memset(to, 0, bytes);
        }
    }
};
/// Of each thread: those of groups that have ended, but for the last one; the last one's; those begun since.
static std::vector<Copy> copies[THREADS_MAX][3];

/// Happens at once in every other block, and as late as it may in the rest.
inline void begin_copy(void *to, const void *from, size_t bytes, bool exists) {
    if ((size_t)to % bytes != 0 || (size_t)from % bytes != 0) fprintf(stderr, "a copy is not aligned\n"), abort();
    Copy copy = {to, from, bytes, exists};
    if (blockIdx.x % 2 == 0) {
        copy.act();
    } else {
        copies[threadIdx.x][2].push_back(copy);
    }
}

inline void copy_beside(__nv_bfloat16 *to, const __nv_bfloat16 *from, bool exists) { begin_copy(to, from, 16, exists); }
inline void copy_beside(float *to, const float *from, bool exists) { begin_copy(to, from, 4, exists); }

inline void end_copies() {
    auto &groups = copies[threadIdx.x];
    groups[0].insert(groups[0].end(), groups[1].begin(), groups[1].end());
    groups[1] = std::move(groups[2]);
    groups[2].clear();
}

inline void wait_for_copies_but_last() {
    for (const Copy &copy : copies[threadIdx.x][0]) copy.act();
    copies[threadIdx.x][0].clear();
}

static void (*body)();

/// Whether the last block comes first.
static bool from_last;
extern "C" void emulate_from_last(int whether) { from_last = whether; }

/// One block after the other.
static void run_thread() {
    for (;;) {
        body();
        ended[threadIdx.x] = true;
        yield();
    }
}

/// Lets a thread run to its next barrier or exchange, or to its end. After its first entry without a system call.
__attribute__((noinline)) static void resume(unsigned thread) {
    threadIdx.x = thread;
    if (_setjmp(in_scheduler) != 0) return;
    if (started[thread]) _longjmp(in_thread[thread], 1);
    started[thread] = true;
    setcontext(&first_entry[thread]);
}

/// Lets a warp run to the block's next barrier, or to its end; its threads meet at each exchange.
static void run_warp(unsigned first, bool back) {
    for (bool runs = true; runs;) {
        runs = false;
        for (unsigned turn = 0; turn < WARP; ++turn) {
            unsigned thread = first + (back ? WARP - 1 - turn : turn);
            if (at_barrier[thread] || ended[thread]) continue;
            resume(thread);
            runs = true;
        }
    }
}

/// Calls `kernel` for every thread of every block. Not for several threads of the process at once.
inline void run(void (*kernel)(), unsigned blocks, unsigned block_threads) {
    static char *stacks = (char *)malloc((size_t)THREADS_MAX * STACK);
    body = kernel;
    blockDim.x = block_threads;
    for (unsigned thread = 0; thread < block_threads; ++thread) {
        getcontext(&first_entry[thread]);
        first_entry[thread].uc_stack.ss_sp = stacks + (size_t)thread * STACK;
        first_entry[thread].uc_stack.ss_size = STACK;
        first_entry[thread].uc_link = &scheduler;
        makecontext(&first_entry[thread], run_thread, 0);
        started[thread] = false;
    }
    for (unsigned turn = 0; turn < blocks; ++turn) {
        blockIdx.x = from_last ? blocks - 1 - turn : turn;
        for (unsigned thread = 0; thread < block_threads; ++thread) barriers_met[thread] = ended[thread] = 0;
        // There and back, so that a warp that reads without a barrier what another writes reads it too early or too late.
        for (bool back = blockIdx.x % 2; !ended[0]; back = !back) {
            for (unsigned thread = 0; thread < block_threads; ++thread) at_barrier[thread] = false;
            unsigned warps = block_threads / WARP;
            for (unsigned turn = 0; turn < warps; ++turn) run_warp((back ? warps - 1 - turn : turn) * WARP, back);
            for (unsigned thread = 1; thread < block_threads; ++thread) {
                if (barriers_met[thread] != barriers_met[0] || ended[thread] != ended[0]) {
                    fprintf(stderr, "threads 0 and %u do not meet the same barriers\n", thread);
                    abort();
                }
            }
        }
    }
}

/// The kernels' arguments come as pointers to their values, as the driver takes them.
static void **arguments;

template <typename... A, size_t... I> void call_with(void (*kernel)(A...), std::index_sequence<I...>) {
    kernel(*(A *)arguments[I]...);
}

template <typename... A> void call(void (*kernel)(A...)) { call_with(kernel, std::index_sequence_for<A...>{}); }

/// A strided batched product of BLAS, all matrices column-major: (transposed?, kind, address, leading dimension, stride) of
/// each, kinds 0 for float and 1 for bfloat16.
struct Operand {
    int transposed, is_bf16;
    char *address;
    long leading_dimension, stride;

    char *place(long batch, long row, long column) const {
        if (transposed) std::swap(row, column);
        return address + (batch * stride + column * leading_dimension + row) * (is_bf16 ? 2 : 4);
    }
    float read(long batch, long row, long column) const {
        char *at = place(batch, row, column);
        return is_bf16 ? __bfloat162float(*(__nv_bfloat16 *)at) : *(float *)at;
    }
    void write(long batch, long row, long column, float value) const {
        char *at = place(batch, row, column);
        if (is_bf16) {
            *(__nv_bfloat16 *)at = __float2bfloat16(value);
        } else {
            *(float *)at = value;
        }
    }
};

extern "C" void emulate_gemm(const Operand *a, const Operand *b, const Operand *c, long m, long n, long k, float alpha,
                             float beta, long batches) {
    for (long batch = 0; batch < batches; ++batch) {
        for (long column = 0; column < n; ++column) {
            for (long row = 0; row < m; ++row) {
                float sum = 0, before = beta == 0 ? 0 : beta * c->read(batch, row, column);
                for (long inner = 0; inner < k; ++inner) sum += a->read(batch, row, inner) * b->read(batch, inner, column);
                c->write(batch, row, column, before + alpha * sum);
            }
        }
    }
}

#define EMULATE(kernel)                                                                                                \
    extern "C" void emulate_##kernel(unsigned blocks, unsigned block_threads, void **given) {                          \
        arguments = given;                                                                                             \
        run([] { call(kernel); }, blocks, block_threads);                                                              \
    }
