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

// Queries over the tokens of a prompt, whose terms are not stored: numbers for every token instead.
struct Attended {
  const float* keys;        // (n, k)
  const float* values;      // (n, v)
  const float* log_masses;  // (n,), or null
  const float* tilts;       // (k, q): q is a multiple of 16
  const float* guesses;     // (q,): log normalisers, roughly
  const float* counted;     // (q,): 1 for queries that `bounds` adds up, 0 for others
  const float* shares;      // (q,): the mean query is the sum of shares times queries
  int64_t n, k, v, q, size;
  float* tops;         // (blocks, q)
  float* totals;       // (blocks, q)
  float* sums;         // (blocks, q, v)
  float* squares;      // (n,): |value|^2
  float* bounds;       // (n,): sum over queries of min(e^{score - top}, e^{score - guess})^2, for
                       // a top that is not above the largest score of the query
  float* averages;     // (n,): score of the mean query
  float* mean_tops;    // (blocks,), and sums of e^{score - top} for the mean query
  float* mean_totals;  // (blocks,)
  float* mean_sums;    // (blocks, k + v)
  float* value_sums;   // (blocks, v): sums of the values alone
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
EXPORTED(largeprompt_attention_blocks, Attended, attention_of_block)
EXPORTED(largeprompt_moment_blocks, Tilted, moments_of_block)
EXPORTED(largeprompt_square_sums, Terms, square_sums_of_block)
