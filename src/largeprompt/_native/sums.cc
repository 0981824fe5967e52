// Sums over the tokens of sampled prompts, weighted by e^{score}: the C++ version of
// prompts/weighted_sums.py.
//
// A block of counters is drawn (threefry, Box and Muller: the normals of prompts/normals.py up to
// rounding), weighted relative to the running maximum of the scores, and summed (sampled_sums.h);
// blocks are added in float64. The parts of a prompt depend on its length only, so its sums do not
// depend on the rest of the batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "workers.h"

namespace largeprompt {

constexpr int64_t kBlock = 512;     // counters drawn before their weights are formed
constexpr int64_t kPart = 1 << 14;  // fewest counters of a part
constexpr int64_t kParts = 256;     // most parts
constexpr int kMostSums = 8;

// A prompt: words of its key, its number, number of tokens, standard deviation of its scores, and
// further scales.
struct Prompt {
  uint32_t key[2];
  uint32_t number, length;
  float sigma, cosine, sine;
};

struct Summary {
  float top = -INFINITY;
  double sums[kMostSums] = {};
};

// Kinds of prompts: tokens per pair of normals, number of sums of w f and of w^2 f.
struct TwoScores {
  static constexpr int per_counter = 2, first = 2, second = 1;
};
struct ScoreAndValue {
  static constexpr int per_counter = 1, first = 5, second = 3;
};

template <typename Layout>
inline void rescale(Summary& summary, float top) {
  const double fade = std::exp(double(summary.top) - top);
  for (int k = 0; k < Layout::first + Layout::second; ++k)
    summary.sums[k] *= k < Layout::first ? fade : fade * fade;
  summary.top = top;
}

}  // namespace largeprompt

#define KERNEL "sampled_sums.h"
#include "instruction_sets.h"

namespace ffi = xla::ffi;

namespace largeprompt {
namespace {

// Counters in a part of a prompt of `counters` counters.
int64_t part_size(int64_t counters) {
  return std::max(kPart, ((counters + kParts - 1) / kParts + kBlock - 1) / kBlock * kBlock);
}

template <typename Layout, typename Sum>
void solve(ffi::ThreadPool& pool, int64_t n, const std::vector<Prompt>& prompts, Sum sum,
           float* first, float* second) {
  std::vector<int64_t> begins(n + 1);
  auto counters = [&](int64_t r) {
    const int64_t length = std::max<int64_t>(1, prompts[r].length);  // sums over no tokens are NaN
    return (length + Layout::per_counter - 1) / Layout::per_counter;
  };
  for (int64_t r = 0; r < n; ++r) {
    const int64_t size = part_size(counters(r));
    begins[r + 1] = begins[r] + (counters(r) + size - 1) / size;
  }
  std::vector<Summary> parts(begins[n]);
  shared_loop(pool, begins[n], [&](int64_t turn) {
    const int64_t r = std::upper_bound(begins.begin(), begins.end(), turn) - begins.begin() - 1;
    const int64_t size = part_size(counters(r)), begin = (turn - begins[r]) * size;
    sum(prompts[r], begin, std::min(begin + size, counters(r)), parts[turn]);
  });
  for (int64_t r = 0; r < n; ++r) {
    Summary total = parts[begins[r]];
    for (int64_t c = begins[r] + 1; c < begins[r + 1]; ++c) {
      Summary part = parts[c];
      const float top = std::max(total.top, part.top);
      rescale<Layout>(total, top);
      rescale<Layout>(part, top);
      for (int k = 0; k < kMostSums; ++k) total.sums[k] += part.sums[k];
    }
    for (int k = 0; k < Layout::first; ++k) first[r * Layout::first + k] = total.sums[k];
    for (int k = 0; k < Layout::second; ++k)
      second[r * Layout::second + k] = total.sums[Layout::first + k];
  }
}

using Float32 = ffi::Buffer<ffi::F32>;
using UInt32 = ffi::Buffer<ffi::U32>;

// Leading axes come from `jax.vmap`; scales (..., kinds, n) are sigma and, for values, cosine
// and sine.
ffi::Error weighted_sums(ffi::ThreadPool pool, UInt32 key, UInt32 numbers, UInt32 lengths,
                         Float32 scales, ffi::Result<Float32> first, ffi::Result<Float32> second) {
  const int64_t total = numbers.element_count(), n = numbers.dimensions().back();
  const bool values = first->dimensions().back() == ScoreAndValue::first;
  if (scales.element_count() != numbers.element_count() * (values ? 3 : 1))
    return ffi::Error::InvalidArgument(
        "scales must have one row for scores, or three for scores and values");
  std::vector<Prompt> prompts(total);
  for (int64_t r = 0; r < total; ++r) {
    const int64_t batch = r / n;
    const float* scale = scales.typed_data() + batch * (values ? 3 : 1) * n + r % n;
    const uint32_t* words = key.typed_data() + 2 * batch;
    prompts[r] = Prompt{{words[0], words[1]}, numbers.typed_data()[r], lengths.typed_data()[r],
                        scale[0], values ? scale[n] : 0, values ? scale[2 * n] : 0};
  }
  float *to_first = first->typed_data(), *to_second = second->typed_data();
  if (values)
    solve<ScoreAndValue>(pool, total, prompts, FOR_THIS_MACHINE(sum_scores_and_values), to_first,
                         to_second);
  else
    solve<TwoScores>(pool, total, prompts, FOR_THIS_MACHINE(sum_scores), to_first, to_second);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace largeprompt

XLA_FFI_DEFINE_HANDLER_SYMBOL(largeprompt_weighted_sums, largeprompt::weighted_sums,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<largeprompt::UInt32>()
                                  .Arg<largeprompt::UInt32>()
                                  .Arg<largeprompt::UInt32>()
                                  .Arg<largeprompt::Float32>()
                                  .Ret<largeprompt::Float32>()
                                  .Ret<largeprompt::Float32>());
