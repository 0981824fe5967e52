// Kernel of attention.cc: sums over a part of a prompt, one tile of tokens at a time, with a
// running maximum of the scores.

constexpr int kGroups = LANES == 16 ? 16 : 8;  // vectors of a tile: as many as fit the registers
constexpr int64_t kTile = kGroups * kLanes;    // tokens scored before their weights are formed
constexpr int64_t kRows = 64;                  // the same for tokens that are not transposed
constexpr int64_t kAhead = 128;                // prefetch distance for these, in tokens
constexpr int kTilts = 4;                      // tilts that share the reading of whole vectors
constexpr int kColumns = LANES == 16 ? 4 : 2;  // vectors of values for these

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
  for (int g = 0; g < tile / kLanes; ++g) logs[g] = Floats{};
  if (p.log_weights) std::memcpy(log, p.log_weights + first, size * sizeof(float));
  for (int64_t t = size; t < tile; ++t) log[t] = kNothing;
}

// Into the second-level cache: a tile's worth of requests would block the first one.
INLINE void prefetch(const float* at) { __builtin_prefetch(at, 0, 2); }

// Adds the products of coordinates from j on of a vector of rows and those of a tilt.
template <int columns>
INLINE void add_products(const float* const* row, int64_t j, const float* tilt, int64_t ahead,
                         Floats* products) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    for (int c = 0; c < columns; ++c) {
      const float* at = row[i] + j + c * kLanes;
      prefetch(at + ahead);
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

// Rows of at least one vector: those of an array in place, or shorter ones copied and padded with
// zeros, one tile at a time. The last coordinates are read as the last full vector of the row; its
// first lanes belong to the vector before and are multiplied by 0.
struct Rows {
  const float *array, *end;
  int64_t size, d, left, whole, last;
  bool padded;
  alignas(sizeof(Floats)) float copy[kRows * kLanes];

  Rows(const float* array, int64_t n, int64_t size)
      : array(array), end(array + n * size), size(size), d(std::max<int64_t>(size, kLanes)),
        left(d % kLanes), whole(d - left), last(d - kLanes), padded(size < kLanes) {}

  // The tile of `count` rows from `first` on.
  const float* tile(int64_t first, int64_t count) {
    if (!padded) return array + first * d;
    Ints lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    const Ints used = lane < int32_t(size);
    for (int64_t t = 0; t < count; ++t) {
      const float* row = array + (first + t) * size;
      float last_rows[kLanes] = {};  // a vector of these would end beyond the array
      if (row + kLanes > end) {
        for (int64_t j = 0; j < size; ++j) last_rows[j] = row[j];
        row = last_rows;
      }
      store(copy + t * kLanes, used ? load(row) : Floats{});
    }
    return copy;
  }
};

// Adds the scores of a tile of rows.
INLINE void add_scores(const Rows& of, const float* rows, int64_t size, const float* tilt,
                       Floats* scores) {
  float end_of_tilt[kLanes] = {};
  if (of.padded) {
    std::copy(tilt, tilt + of.size, end_of_tilt);
    tilt = end_of_tilt;
  } else {
    std::copy(tilt + of.whole, tilt + of.d, end_of_tilt + kLanes - of.left);
  }
  const int64_t ahead = of.padded ? 0 : kAhead * of.d;
  for (int64_t t = 0; t < size; t += kLanes) {
    const float* row[kLanes];
    // rows beyond the end repeat the last one, with weight 0
    for (int i = 0; i < kLanes; ++i) row[i] = rows + std::min(t + i, size - 1) * of.d;
    Floats products[kLanes] = {};
    int64_t j = 0;
    for (; j + 4 * kLanes <= of.d; j += 4 * kLanes)
      add_products<4>(row, j, tilt + j, ahead, products);
    for (; j < of.whole; j += kLanes) add_products<1>(row, j, tilt + j, ahead, products);
    if (of.left) add_products<1>(row, of.last, end_of_tilt, ahead, products);
    scores[t / kLanes] += sums(products);
  }
}

// Sets mean to fade * mean + the weighted sum of a tile of rows.
INLINE void add_values(const Rows& of, const float* rows, int64_t size, const float* weights,
                       float fade, float* mean) {
  float end_of_mean[kLanes] = {};
  if (of.padded) {
    std::copy(mean, mean + of.size, end_of_mean);
    add_rows<1>(rows, kLanes, weights, size, fade, end_of_mean);
    std::copy(end_of_mean, end_of_mean + of.size, mean);
    return;
  }
  int64_t j = 0;
  for (; j + 4 * kLanes <= of.d; j += 4 * kLanes)
    add_rows<4>(rows + j, of.d, weights, size, fade, mean + j);
  for (; j < of.whole; j += kLanes) add_rows<1>(rows + j, of.d, weights, size, fade, mean + j);
  if (of.left) {
    std::copy(mean + of.whole, mean + of.d, end_of_mean + kLanes - of.left);
    add_rows<1>(rows + of.last, of.d, weights, size, fade, end_of_mean);
    std::copy(end_of_mean + kLanes - of.left, end_of_mean + kLanes, mean + of.whole);
  }
}

// Adds the scores of a tile of rows of whole vectors for kTilts tilts, for which every row is read
// once.
INLINE void add_scores_of_group(const Rows& of, const float* rows, int64_t size,
                                const float* tilts, Floats (*scores)[kRows / kLanes]) {
  constexpr int together = kLanes / kTilts;
  for (int64_t t = 0; t < size; t += together) {
    Floats products[kLanes] = {};
    const float* row[together];
    for (int i = 0; i < together; ++i) row[i] = rows + std::min(t + i, size - 1) * of.d;
    for (int64_t j = 0; j < of.d; j += kLanes) {
      Floats tilt[kTilts];
      for (int a = 0; a < kTilts; ++a) tilt[a] = load(tilts + a * of.d + j);
      for (int i = 0; i < together; ++i) {
        prefetch(row[i] + j + kAhead * of.d);
        const Floats x = load(row[i] + j);
        for (int a = 0; a < kTilts; ++a) products[i * kTilts + a] += x * tilt[a];
      }
    }
    float found[kLanes];
    store(found, sums(products));
    for (int i = 0; i < together; ++i)
      for (int a = 0; a < kTilts; ++a)
        reinterpret_cast<float*>(scores[a])[t + i] += found[i * kTilts + a];
  }
}

// `add_rows` for kTilts tilts, for which every row is read once.
template <int columns>
INLINE void add_rows_of_group(const float* rows, int64_t d, const Floats (*scores)[kRows / kLanes],
                              int64_t size, const float* fades, float* means) {
  Floats moved[kTilts][columns];
  const float* weights[kTilts];
  for (int a = 0; a < kTilts; ++a) {
    weights[a] = reinterpret_cast<const float*>(scores[a]);
    for (int c = 0; c < columns; ++c) moved[a][c] = load(means + a * d + c * kLanes) * fades[a];
  }
  for (int64_t t = 0; t < size; ++t) {
    Floats x[columns];
    for (int c = 0; c < columns; ++c) x[c] = load(rows + t * d + c * kLanes);
    for (int a = 0; a < kTilts; ++a)
      for (int c = 0; c < columns; ++c) moved[a][c] += weights[a][t] * x[c];
  }
  for (int a = 0; a < kTilts; ++a)
    for (int c = 0; c < columns; ++c) store(means + a * d + c * kLanes, moved[a][c]);
}

// One tile and kTilts tilts, for keys and values of whole vectors.
INLINE void add_tile_of_group(const Problem& p, const Rows& keys, const float* scored,
                              const Rows& values, const float* read, int64_t first, int64_t size,
                              int64_t a, Sums* sums_so_far, float* means) {
  Floats scores[kTilts][kRows / kLanes];
  float fades[kTilts];
  for (int b = 0; b < kTilts; ++b) log_weights_of_tile<kRows>(p, first, size, scores[b]);
  add_scores_of_group(keys, scored, size, p.tilts + a * p.k, scores);
  for (int b = 0; b < kTilts; ++b) fades[b] = weights_of_scores<kRows>(scores[b], sums_so_far[b]);
  int64_t j = 0;
  for (; j + kColumns * kLanes <= values.d; j += kColumns * kLanes)
    add_rows_of_group<kColumns>(read + j, values.d, scores, size, fades, means + j);
  for (; j < values.d; j += kLanes)
    add_rows_of_group<1>(read + j, values.d, scores, size, fades, means + j);
}

// The sum of weights times numbers, one for each row of a tile.
INLINE float dot(const float* weights, const float* numbers, int64_t size) {
  Floats products{};
  int64_t t = 0;
  for (; t + kLanes <= size; t += kLanes) products += load(weights + t) * load(numbers + t);
  float total = sum(products);
  for (; t < size; ++t) total += weights[t] * numbers[t];
  return total;
}

// For few tilts or wide tokens (keys or values of at least one vector): rows are read in place.
// Values that are the keys are read from the first-level cache.
void sums_by_rows(const Problem& p, int64_t begin, int64_t end, int64_t from, int64_t to,
                  Sums* sums_so_far, float* means) {
  Rows keys(p.keys, p.n, p.k), values(p.values, p.n, p.v);
  const bool numbers = p.v == 1, whole = p.k % kLanes == 0 && p.v % kLanes == 0;
  for (int64_t first = begin; first < end; first += kRows) {
    const int64_t size = std::min(kRows, end - first);
    const float* scored = keys.tile(first, size);
    const float* read = numbers ? p.values + first : values.tile(first, size);
    int64_t a = from;
    for (; whole && a + kTilts <= to; a += kTilts)
      add_tile_of_group(p, keys, scored, values, read, first, size, a, sums_so_far + (a - from),
                        means + (a - from) * p.v);
    for (; a < to; ++a) {
      Floats scores[kRows / kLanes];
      log_weights_of_tile<kRows>(p, first, size, scores);
      add_scores(keys, scored, size, p.tilts + a * p.k, scores);
      const float fade = weights_of_scores<kRows>(scores, sums_so_far[a - from]);
      const float* weights = reinterpret_cast<const float*>(scores);
      float* mean = means + (a - from) * p.v;
      if (numbers)
        *mean = *mean * fade + dot(weights, read, size);
      else
        add_values(values, read, size, weights, fade, mean);
    }
  }
}

// Columns of a tile of rows, with zeros beyond its end.
INLINE void transpose(const float* rows, int64_t size, int64_t d, Floats* columns) {
  float* column = reinterpret_cast<float*>(columns);
  for (int64_t j = 0; j < d; ++j) {
    for (int64_t t = 0; t < size; ++t) column[j * kTile + t] = rows[t * d + j];
    for (int64_t t = size; t < kTile; ++t) column[j * kTile + t] = 0;
  }
}

// For many tilts of narrow tokens: a tile is transposed once, and each lane is a token.
void sums_by_columns(const Problem& p, int64_t begin, int64_t end, int64_t from, int64_t to,
                     Sums* sums, float* means) {
  const int64_t k = p.k, v = p.v;
  const bool one_array = p.keys == p.values && k == v;
  Space space(kGroups * (k + 1 + (one_array ? 0 : v)) + (to - from) * v);
  Floats *logs = space.data(), *keys = logs + kGroups;
  Floats *values = one_array ? keys : keys + kGroups * k, *sums_of_values = values + kGroups * v;
  for (int64_t first = begin; first < end; first += kTile) {
    const int64_t size = std::min(kTile, end - first);
    transpose(p.keys + first * k, size, k, keys);
    if (!one_array) transpose(p.values + first * v, size, v, values);
    log_weights_of_tile<kTile>(p, first, size, logs);
    for (int64_t a = from; a < to; ++a) {
      const float* tilt = p.tilts + a * k;
      Floats weights[kGroups];
      for (int g = 0; g < kGroups; ++g) weights[g] = logs[g];
      for (int64_t j = 0; j < k; ++j)
        for (int g = 0; g < kGroups; ++g) weights[g] += tilt[j] * keys[j * kGroups + g];
      const float fade = weights_of_scores<kTile>(weights, sums[a - from]);
      Floats* moved = sums_of_values + (a - from) * v;
      for (int64_t j = 0; j < v; ++j) {
        Floats even{}, odd{};
        for (int g = 0; g < kGroups; g += 2) {
          even += weights[g] * values[j * kGroups + g];
          odd += weights[g + 1] * values[j * kGroups + g + 1];
        }
        moved[j] = moved[j] * fade + (even + odd);
      }
    }
  }
  for (int64_t i = 0; i < (to - from) * v; ++i) means[i] = sum(sums_of_values[i]);
}
