// Sums over blocks of tokens that compression needs: softmax terms of queries, weighted moments of
// keys and values, sums over queries of squared terms. Plain functions of arrays, called by ctypes
// for a range of blocks on each thread; blocks do not depend on each other.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

namespace largeprompt {

// Queries over the tokens of a prompt. Arrays over blocks have one entry for each `size` tokens.
struct Blocks {
  const float* keys;        // (n, k)
  const float* values;      // (n, v)
  const float* log_masses;  // (n,), or null
  const float* tilts;       // (k, q): q is a multiple of 16
  int64_t n, k, v, q, size;
  float* terms;    // (n, q)
  float* tops;     // (blocks, q)
  float* totals;   // (blocks, q)
  float* sums;     // (blocks, q, v)
  float* squares;  // (n,): |value|^2
};

// Tokens of a prompt at one tilt of the keys.
struct Tilted {
  const float* keys;        // (n, k)
  const float* values;      // (n, v)
  const float* log_masses;  // (n,)
  const float* tilt;        // (k,)
  int64_t n, k, v, size;
  float* tops;        // (blocks,)
  float* totals;      // (blocks,)
  float* means;       // (blocks, k + v)
  float* key_sums;    // (blocks, k, k)
  float* value_sums;  // (blocks, k, v)
};

// Stored terms of queries.
struct Terms {
  const float* terms;         // (n, q): q is a multiple of 16
  const float* coefficients;  // (blocks, 3, q)
  int64_t n, q, size;
  float* found;  // (3, n)
};

}  // namespace largeprompt

#define KERNEL "block_sums.h"
#include "instruction_sets.h"

#define EXPORTED(name, Problem, of_block)                                            \
  extern "C" void name(const largeprompt::Problem* problem, int64_t from, int64_t to) { \
    const auto call = FOR_THIS_MACHINE(of_block);                                     \
    for (int64_t block = from; block < to; ++block) call(*problem, block);            \
  }

EXPORTED(largeprompt_softmax_blocks, Blocks, softmax_of_block)
EXPORTED(largeprompt_moment_blocks, Tilted, moments_of_block)
EXPORTED(largeprompt_square_sums, Terms, square_sums_of_block)
