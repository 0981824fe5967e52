// Softmax attention over given tokens in one pass: log sum_i w_i e^{<u, k_i>} and sum_i p_i v_i for
// every tilt u. Keys k_i and values v_i are two arrays, or one and the same: then every token is
// read once for both.
//
// The prompt is split into parts and the tilts into blocks, depending on their numbers only.
// Every part is read once (attention_sums.h), on any thread, and the parts are merged in order,
// so that the same call always returns the same bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "workers.h"

namespace largeprompt {

// Tokens and tilts of one call.
struct Problem {
  const float* keys;         // (n, k)
  const float* values;       // (n, v)
  const float* log_weights;  // (n,), or null for equal weights
  const float* tilts;        // (q, k)
  int64_t n, k, v, q;
};

// Sums over a part of the prompt for one tilt, relative to e^top.
struct Sums {
  float top, total;
};

}  // namespace largeprompt

#define KERNEL "attention_sums.h"
#include "instruction_sets.h"

namespace ffi = xla::ffi;

namespace largeprompt {
namespace {

constexpr int64_t kPart = 1 << 10;  // fewest tokens of a part
constexpr int64_t kParts = 256;     // most parts
constexpr int64_t kBlock = 512;     // most tilts of a block
constexpr int64_t kTurns = 16;      // pieces of work that keep several threads busy
constexpr int64_t kFew = 4;         // fewer tilts than this read the tokens in place
constexpr int64_t kNarrow = 64;     // most coordinates of key and value for which more tilts
                                    // transpose the tokens
constexpr int64_t kVector = 16;     // lanes of the widest vector: shorter rows are transposed too

// Merges the sums of the parts, (parts, q) and (parts, q, v), into the moments for tilt a.
void merge(const Problem& p, int64_t parts, const Sums* sums, const float* means, int64_t a,
           float* log_normaliser, float* mean) {
  float top = -INFINITY;
  for (int64_t c = 0; c < parts; ++c) top = std::max(top, sums[c * p.q + a].top);
  const double base = top == -INFINITY ? 0 : top;
  double total = 0;
  std::vector<double> moved(p.v);
  for (int64_t c = 0; c < parts; ++c) {
    const Sums& part = sums[c * p.q + a];
    const double share = std::exp(part.top - base);
    total += share * part.total;
    for (int64_t j = 0; j < p.v; ++j) moved[j] += share * means[(c * p.q + a) * p.v + j];
  }
  log_normaliser[a] = base + std::log(total);
  for (int64_t j = 0; j < p.v; ++j) mean[a * p.v + j] = total == 0 ? 0 : moved[j] / total;
}

// Solves problems with the same n, k, v and q; the results are stored one after the other.
void solve(ffi::ThreadPool& pool, const std::vector<Problem>& problems, float* log_normaliser,
           float* mean) {
  const int64_t n = problems[0].n, k = problems[0].k, v = problems[0].v, q = problems[0].q;
  const int64_t count = problems.size();
  // smaller blocks if there are too few tokens for many parts
  int64_t block = kBlock;
  while (block > 32 && (q / block + 1) * (n / kPart + 1) * count < kTurns) block /= 2;
  const int64_t blocks = (q + block - 1) / block;
  const int64_t most = std::max<int64_t>(1, kParts / (blocks * count));
  const int64_t size = std::max(kPart, ((n + most - 1) / most + kPart - 1) / kPart * kPart);
  const int64_t parts = (n + size - 1) / size;
  const bool in_place = std::max(k, v) >= kVector && (q < kFew || k + v > kNarrow);
  const auto by = in_place ? FOR_THIS_MACHINE(sums_by_rows) : FOR_THIS_MACHINE(sums_by_columns);
  std::vector<Sums> sums(count * parts * q, Sums{-INFINITY, 0});
  std::vector<float> means(count * parts * q * v);
  shared_loop(pool, count * blocks * parts, [&](int64_t turn) {
    const int64_t part = turn % parts, from = turn / parts % blocks * block;
    const int64_t which = turn / parts / blocks;
    const int64_t to = std::min(from + block, q), place = (which * parts + part) * q + from;
    by(problems[which], part * size, std::min((part + 1) * size, n), from, to, &sums[place],
       &means[place * v]);
  });
  for (int64_t i = 0; i < count * q; ++i) {
    const int64_t which = i / q, place = which * parts * q;
    merge(problems[which], parts, &sums[place], &means[place * v], i % q,
          log_normaliser + which * q, mean + which * q * v);
  }
}

using Float32 = ffi::Buffer<ffi::F32>;

// Address of entry `index` of the leading axes `shape`, in an array whose leading axes have these
// lengths or 1.
const float* entry(const Float32& array, const std::vector<int64_t>& shape, int64_t index) {
  int64_t offset = 0, stride = array.element_count();
  for (size_t axis = 0; axis < shape.size(); ++axis) stride /= array.dimensions()[axis];
  for (size_t axis = shape.size(); axis-- > 0; index /= shape[axis]) {
    const int64_t own = array.dimensions()[axis];
    offset += (own == 1 ? 0 : index % shape[axis]) * stride;
    stride *= own;
  }
  return array.typed_data() + offset;
}

// keys (..., n, k), values (..., n, v), log weights (..., n) or (..., 0) for none, tilts (..., q, k);
// leading axes come from `jax.vmap` and have length 1 for a shared argument.
ffi::Error tilted_moments(ffi::ThreadPool pool, Float32 keys, Float32 values, Float32 log_weights,
                          Float32 tilts, ffi::Result<Float32> log_normaliser,
                          ffi::Result<Float32> mean) {
  const auto results = log_normaliser->dimensions();
  const std::vector<int64_t> shape(results.begin(), results.end() - 1);
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  const int64_t n = keys.dimensions()[shape.size()];
  const int64_t k = keys.dimensions().back(), v = values.dimensions().back();
  int64_t q = results.back();
  if (count == 0) return ffi::Error::Success();
  const bool weighted = log_weights.dimensions().back() > 0;
  // one prompt for all: its tilts are those of one problem
  if (keys.element_count() == size_t(n * k) && values.element_count() == size_t(n * v) &&
      (!weighted || log_weights.element_count() == size_t(n)) &&
      tilts.element_count() == size_t(count * q * k)) {
    q *= count;
    count = 1;
  }
  std::vector<Problem> problems;
  for (int64_t i = 0; i < count; ++i)
    problems.push_back({entry(keys, shape, i), entry(values, shape, i),
                        weighted ? entry(log_weights, shape, i) : nullptr, entry(tilts, shape, i),
                        n, k, v, q});
  solve(pool, problems, log_normaliser->typed_data(), mean->typed_data());
  return ffi::Error::Success();
}

}  // namespace
}  // namespace largeprompt

XLA_FFI_DEFINE_HANDLER_SYMBOL(largeprompt_tilted_moments, largeprompt::tilted_moments,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<largeprompt::Float32>()
                                  .Arg<largeprompt::Float32>()
                                  .Arg<largeprompt::Float32>()
                                  .Arg<largeprompt::Float32>()
                                  .Ret<largeprompt::Float32>()
                                  .Ret<largeprompt::Float32>());
