// Kernel of attention.cc: sums over a part of a prompt, one tile of tokens at a time, with a
// running maximum of the scores.

constexpr int kGroups = LANES == 16 ? 16 : 8;  // vectors of a tile: as many as fit the registers
constexpr int64_t kTile = kGroups * kLanes;    // tokens scored before their weights are formed
constexpr int64_t kRows = 64;                  // the same for tokens that are not transposed
constexpr int64_t kAhead = 32;                 // prefetch distance for these, in tokens

// Replaces the scores s of a tile by the weights e^{s - top}; returns the factor by which the
// sums so far must be rescaled.
template <int64_t tile>
INLINE float weights_of_scores(Floats* scores, Sums& sums) {
  Floats highest = scores[0];
  for (int g = 1; g < tile / kLanes; ++g) highest = larger(highest, scores[g]);
  const float top = largest(highest);
  float fade = 1;
  if (top > sums.top) {
    fade = std::exp(sums.top - top);
    sums.top = top;
  }
  const float base = sums.top == kNothing ? 0 : sums.top;  // no weight so far: -inf - -inf is NaN
  Floats total{};
  for (int g = 0; g < tile / kLanes; ++g) total += scores[g] = exp_of_negative(scores[g] - base);
  sums.total = sums.total * fade + sum(total);
  return fade;
}

// Log weights of a tile; -inf beyond the end.
template <int64_t tile>
INLINE void log_weights_of_tile(const Problem& p, int64_t first, int64_t size, Floats* logs) {
  float* log = reinterpret_cast<float*>(logs);
  for (int64_t t = 0; t < tile; ++t)
    log[t] = t >= size ? kNothing : p.log_weights ? p.log_weights[first + t] : 0.0f;
}

// Adds the products of coordinates from j on of a vector of rows and those of a tilt.
template <int columns>
INLINE void add_products(const float* const* row, int64_t j, const float* tilt, int64_t ahead,
                         Floats* products) {
  for (int i = 0; i < kLanes; ++i)
    for (int c = 0; c < columns; ++c) {
      const float* at = row[i] + j + c * kLanes;
      __builtin_prefetch(at + ahead);
      products[i] += load(at) * load(tilt + c * kLanes);
    }
}

// Sets mean to fade * mean + the weighted sum of rows, for `columns` vectors of coordinates.
template <int columns>
INLINE void add_rows(const float* rows, int64_t d, const float* weights, int64_t size, float fade,
                     float* mean) {
  Floats moved[columns];
  for (int c = 0; c < columns; ++c) moved[c] = load(mean + c * kLanes) * fade;
  for (int64_t t = 0; t < size; ++t)
    for (int c = 0; c < columns; ++c) moved[c] += weights[t] * load(rows + t * d + c * kLanes);
  for (int c = 0; c < columns; ++c) store(mean + c * kLanes, moved[c]);
}

// For few tilts or wide tokens (at least one vector): rows are read in place, twice, the second
// time from the first-level cache.
void sums_by_rows(const Problem& p, int64_t begin, int64_t end, int64_t from, int64_t to,
                  Sums* sums_so_far, float* means) {
  // the last coordinates are read as the last full vector of the row; its first lanes belong to the
  // vector before and are multiplied by 0
  const int64_t d = p.d, left = d % kLanes, whole = d - left, last = d - kLanes;
  for (int64_t first = begin; first < end; first += kRows) {
    const int64_t size = std::min(kRows, end - first);
    const float* rows = p.points + first * d;
    for (int64_t a = from; a < to; ++a) {
      const float* tilt = p.tilts + a * d;
      float end_of_tilt[kLanes] = {}, end_of_mean[kLanes] = {};
      std::copy(tilt + whole, tilt + d, end_of_tilt + kLanes - left);
      Floats scores[kRows / kLanes];
      log_weights_of_tile<kRows>(p, first, size, scores);
      for (int64_t t = 0; t < size; t += kLanes) {
        const float* row[kLanes];
        // rows beyond the end repeat the last one, with weight 0
        for (int i = 0; i < kLanes; ++i) row[i] = rows + std::min(t + i, size - 1) * d;
        Floats products[kLanes] = {};
        int64_t j = 0;
        for (; j + 4 * kLanes <= d; j += 4 * kLanes)
          add_products<4>(row, j, tilt + j, kAhead * d, products);
        for (; j < whole; j += kLanes) add_products<1>(row, j, tilt + j, kAhead * d, products);
        if (left) add_products<1>(row, last, end_of_tilt, kAhead * d, products);
        scores[t / kLanes] += sums(products);
      }
      const float fade = weights_of_scores<kRows>(scores, sums_so_far[a - from]);
      const float* weights = reinterpret_cast<const float*>(scores);
      float* mean = means + (a - from) * d;
      int64_t j = 0;
      for (; j + 4 * kLanes <= d; j += 4 * kLanes)
        add_rows<4>(rows + j, d, weights, size, fade, mean + j);
      for (; j < whole; j += kLanes) add_rows<1>(rows + j, d, weights, size, fade, mean + j);
      if (left) {
        std::copy(mean + whole, mean + d, end_of_mean + kLanes - left);
        add_rows<1>(rows + last, d, weights, size, fade, end_of_mean);
        std::copy(end_of_mean + kLanes - left, end_of_mean + kLanes, mean + whole);
      }
    }
  }
}

// For many tilts of narrow tokens: a tile is transposed once, and each lane is a token.
void sums_by_columns(const Problem& p, int64_t begin, int64_t end, int64_t from, int64_t to,
                     Sums* sums, float* means) {
  const int64_t d = p.d;
  Space space(kGroups * (d + 1) + (to - from) * d);
  Floats *columns = space.data(), *logs = columns + kGroups * d, *sums_of_columns = logs + kGroups;
  for (int64_t first = begin; first < end; first += kTile) {
    const int64_t size = std::min(kTile, end - first);
    const float* rows = p.points + first * d;
    float* column = reinterpret_cast<float*>(columns);
    for (int64_t j = 0; j < d; ++j) {
      for (int64_t t = 0; t < size; ++t) column[j * kTile + t] = rows[t * d + j];
      for (int64_t t = size; t < kTile; ++t) column[j * kTile + t] = 0;
    }
    log_weights_of_tile<kTile>(p, first, size, logs);
    for (int64_t a = from; a < to; ++a) {
      const float* tilt = p.tilts + a * d;
      Floats weights[kGroups];
      for (int g = 0; g < kGroups; ++g) weights[g] = logs[g];
      for (int64_t j = 0; j < d; ++j)
        for (int g = 0; g < kGroups; ++g) weights[g] += tilt[j] * columns[j * kGroups + g];
      const float fade = weights_of_scores<kTile>(weights, sums[a - from]);
      Floats* moved = sums_of_columns + (a - from) * d;
      for (int64_t j = 0; j < d; ++j) {
        Floats even{}, odd{};
        for (int g = 0; g < kGroups; g += 2) {
          even += weights[g] * columns[j * kGroups + g];
          odd += weights[g + 1] * columns[j * kGroups + g + 1];
        }
        moved[j] = moved[j] * fade + (even + odd);
      }
    }
  }
  for (int64_t k = 0; k < (to - from) * d; ++k) means[k] = sum(sums_of_columns[k]);
}
