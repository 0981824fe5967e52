// Kernel of blocks.cc: products of tokens with queries, and of tokens with tokens, in tiles of
// registers.

constexpr int kHigh = 4;                                         // rows of a tile of registers
constexpr int kWide = LANES == 16 ? 4 : LANES == 8 ? 3 : 2;      // vectors of its rows
constexpr int64_t kTokens = 128;  // tokens whose products are added before sums are stored

INLINE int64_t padded(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

// Scores of kHigh tokens and `wide` vectors of queries; tilts are (k, wide * kLanes).
template <int wide>
INLINE void score_tile(const float* const* key, int64_t k, const float* tilts,
                       Floats (*scores)[wide]) {
  for (int64_t j = 0; j < k; ++j, tilts += wide * kLanes) {
    Floats z[wide];
    for (int c = 0; c < wide; ++c) z[c] = load(tilts + c * kLanes);
    for (int r = 0; r < kHigh; ++r)
      for (int c = 0; c < wide; ++c) scores[r][c] += key[r][j] * z[c];
  }
}

// Scores of the tokens from `begin` to `end` for `wide` vectors of queries from `first` on, and
// their largest.
template <int wide>
INLINE void score_block(const Blocks& p, int64_t begin, int64_t end, int64_t first, Floats* space,
                        Floats* tops) {
  float* tilts = reinterpret_cast<float*>(space);
  for (int64_t j = 0; j < p.k; ++j)
    std::memcpy(tilts + j * wide * kLanes, p.tilts + j * p.q + first, sizeof(Floats) * wide);
  Floats top[wide];
  for (int c = 0; c < wide; ++c) top[c] = filled(kNothing);
  for (int64_t i = begin; i < end; i += kHigh) {
    const float* key[kHigh];
    Floats scores[kHigh][wide];
    for (int r = 0; r < kHigh; ++r) {
      const int64_t token = std::min(i + r, end - 1);  // the last one repeats
      key[r] = p.keys + token * p.k;
      const float log_mass = p.log_masses ? p.log_masses[token] : 0;
      for (int c = 0; c < wide; ++c) scores[r][c] = filled(log_mass);
    }
    score_tile<wide>(key, p.k, tilts, scores);
    for (int r = 0; r < kHigh; ++r)
      for (int c = 0; c < wide; ++c) {
        top[c] = larger(top[c], scores[r][c]);
        if (i + r < end) store(p.terms + (i + r) * p.q + first + c * kLanes, scores[r][c]);
      }
  }
  for (int c = 0; c < wide; ++c) tops[c] = top[c];
}

// Adds sum_i left(i, a) right(i, :) to sums(a, :), for kHigh columns a and `wide` vectors.
template <int wide>
INLINE void add_outer(const float* left, int64_t left_row, const float* right, int64_t right_row,
                      int64_t size, float* sums, int64_t row) {
  Floats total[kHigh][wide];
  for (int a = 0; a < kHigh; ++a)
    for (int c = 0; c < wide; ++c) total[a][c] = load(sums + a * row + c * kLanes);
  for (int64_t i = 0; i < size; ++i, left += left_row, right += right_row) {
    Floats x[wide];
    for (int c = 0; c < wide; ++c) x[c] = load(right + c * kLanes);
    for (int a = 0; a < kHigh; ++a)
      for (int c = 0; c < wide; ++c) total[a][c] += left[a] * x[c];
  }
  for (int a = 0; a < kHigh; ++a)
    for (int c = 0; c < wide; ++c) store(sums + a * row + c * kLanes, total[a][c]);
}

// The same for `rows` columns of left and `columns` of right, both multiples of kLanes. With
// `upper` only what lies above the diagonal is needed.
void add_products_of_tile(const float* left, int64_t rows, const float* right, int64_t columns,
                          int64_t size, bool upper, float* sums) {
  for (int64_t a = 0; a < rows; a += kHigh)
    for (int64_t b = upper ? a / kLanes * kLanes : 0; b < columns;) {
      const auto add = [&](auto wide) {
        add_outer<decltype(wide)::value>(left + a, rows, right + b, columns, size,
                                         sums + a * columns + b, columns);
        b += decltype(wide)::value * kLanes;
      };
      const int64_t vectors = (columns - b) / kLanes;
      if (vectors >= kWide)
        add(std::integral_constant<int, kWide>{});
      else if (vectors >= 2)
        add(std::integral_constant<int, 2>{});
      else
        add(std::integral_constant<int, 1>{});
    }
}

// Adds sum_i weights(i) rows(i, :) to sums, and sum_i rows(i, :) to `plain` if it is not null, for
// rows of whole vectors.
INLINE void add_products_of_column(const float* weights, const float* rows, int64_t columns,
                                   int64_t size, Floats* sums, Floats* plain = nullptr) {
  const auto add = [&](int64_t first, auto wide) {
    constexpr int count = decltype(wide)::value;
    Floats total[count], alone[count] = {};
    for (int c = 0; c < count; ++c) total[c] = sums[first + c];
    for (int64_t i = 0; i < size; ++i)
      for (int c = 0; c < count; ++c) {
        const Floats x = load(rows + i * columns + (first + c) * kLanes);
        total[c] += weights[i] * x;
        alone[c] += x;
      }
    for (int c = 0; c < count; ++c) {
      sums[first + c] = total[c];
      if (plain) plain[first + c] += alone[c];
    }
  };
  int64_t c = 0;
  for (; c + 4 <= columns / kLanes; c += 4) add(c, std::integral_constant<int, 4>{});
  for (; c < columns / kLanes; ++c) add(c, std::integral_constant<int, 1>{});
}

// Rows of an array in place if they are whole vectors, or a tile of them padded with zeros.
struct PaddedRows {
  const float* array;
  int64_t size, row;
  Space copy;

  PaddedRows(const float* array, int64_t size)
      : array(array), size(size), row(padded(size)), copy(row == size ? 0 : kTokens * row / kLanes) {}

  const float* tile(int64_t first, int64_t count) {
    if (row == size) return array + first * size;
    float* rows = reinterpret_cast<float*>(copy.data());
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(rows + i * row, array + (first + i) * size, size * sizeof(float));
    return rows;
  }
};

// Scores of the tokens from `begin` to `end` for all queries, and their largest; `space` has
// k * kWide vectors.
void scores_of_tokens(const Blocks& p, int64_t begin, int64_t end, Floats* space, Floats* tops) {
  for (int64_t c = 0; c < p.q / kLanes;) {
    const int64_t left = p.q / kLanes - c;
    const auto score = [&](auto wide) {
      score_block<decltype(wide)::value>(p, begin, end, c * kLanes, space, tops + c);
      c += decltype(wide)::value;
    };
    if (left >= kWide)
      score(std::integral_constant<int, kWide>{});
    else if (left >= 2)
      score(std::integral_constant<int, 2>{});
    else
      score(std::integral_constant<int, 1>{});
  }
}

// Terms e^{score - top} of one block, and their sums.
void softmax_of_block(const Blocks& p, int64_t block) {
  const int64_t begin = block * p.size, end = std::min(begin + p.size, p.n);
  const int64_t vectors = p.q / kLanes;
  PaddedRows values(p.values, p.v);
  Space space(p.k * kWide), top(vectors), total(vectors), products(p.q * values.row / kLanes);
  scores_of_tokens(p, begin, end, space.data(), top.data());
  float* sums = reinterpret_cast<float*>(products.data());
  std::memcpy(p.tops + block * p.q, top.data(), p.q * sizeof(float));
  for (int64_t c = 0; c < vectors; ++c) {  // no weight at all: -inf - -inf is NaN
    const Floats x = top.data()[c];
    top.data()[c] = x == kNothing ? Floats{} : x;
  }
  for (int64_t first = begin; first < end; first += kTokens) {
    const int64_t size = std::min(kTokens, end - first);
    for (int64_t i = first; i < first + size; ++i)
      for (int64_t c = 0; c < vectors; ++c) {
        float* at = p.terms + i * p.q + c * kLanes;
        const Floats term = exp_of_negative(load(at) - top.data()[c]);
        store(at, term);
        total.data()[c] += term;
      }
    const float* rows = values.tile(first, size);
    add_products_of_tile(p.terms + first * p.q, p.q, rows, values.row, size, false, sums);
    for (int64_t i = 0; i < size; ++i) {
      Floats square{};
      for (int64_t c = 0; c < values.row; c += kLanes) {
        const Floats x = load(rows + i * values.row + c);
        square += x * x;
      }
      p.squares[first + i] = sum(square);
    }
  }
  std::memcpy(p.totals + block * p.q, total.data(), p.q * sizeof(float));
  for (int64_t a = 0; a < p.q; ++a)
    std::memcpy(p.sums + (block * p.q + a) * p.v, sums + a * values.row, p.v * sizeof(float));
}

// Raises tops to those of a tile and the sums so far to match: all start from -inf and zeros.
INLINE void raise_tops(const Floats* of_tile, int64_t vectors, int64_t row, Floats* tops,
                       Floats* totals, float* sums) {
  for (int64_t c = 0; c < vectors; ++c) {
    const Floats top = larger(tops[c], of_tile[c]);
    const Ints raised = top > tops[c];
    bool any = false;
    for (int i = 0; i < kLanes; ++i) any |= raised[i] != 0;
    if (!any) continue;
    const Floats fade = raised ? exp_of_negative(tops[c] - top) : filled(1.0f);
    tops[c] = top;
    totals[c] *= fade;
    for (int i = 0; i < kLanes; ++i) {
      float* of_query = sums + (c * kLanes + i) * row;
      for (int64_t j = 0; j < row; j += kLanes) store(of_query + j, load(of_query + j) * fade[i]);
    }
  }
}

// Moments of tokens at the mean query, with a running maximum.
struct MeanQuery {
  float top = kNothing, total = 0;
  Space sums;  // of keys and of values

  explicit MeanQuery(int64_t row) : sums(row / kLanes) {}

  // `scores` has whole vectors, -inf beyond the end; all values are added to `value_sums`.
  void add(const Floats* scores, int64_t size, const float* key, int64_t k, const float* value,
           int64_t v, Floats* value_sums) {
    const int64_t vectors = padded(size) / kLanes;
    Floats highest = scores[0], added{}, weights[kTokens / kLanes];
    for (int64_t c = 1; c < vectors; ++c) highest = larger(highest, scores[c]);
    const float now = largest(highest);
    if (now > top) {
      const float fade = std::exp(top - now);
      for (int64_t c = 0; c < (k + v) / kLanes; ++c) sums.data()[c] *= fade;
      total *= fade;
      top = now;
    }
    const float base = top == kNothing ? 0 : top;
    for (int64_t c = 0; c < vectors; ++c)
      added += weights[c] = exp_of_negative(scores[c] - base);
    total += sum(added);
    const float* weight = reinterpret_cast<const float*>(weights);
    add_products_of_column(weight, key, k, size, sums.data());
    add_products_of_column(weight, value, v, size, sums.data() + k / kLanes, value_sums);
  }
};

// Asks for one row of `size` floats before it is needed.
INLINE void prefetch_row(const float* row, int64_t size) {
  constexpr int64_t line = 64 / sizeof(float);
  for (int64_t c = 0; c < size; c += line) __builtin_prefetch(row + c);
}

// Softmax sums of one block whose terms are not stored, what bounds them, and the moments at the
// mean query.
void attention_of_block(const Attended& p, int64_t block) {
  const int64_t begin = block * p.size, end = std::min(begin + p.size, p.n);
  const int64_t vectors = p.q / kLanes;
  PaddedRows keys(p.keys, p.k), values(p.values, p.v);
  Space space(p.k * kWide), of_tile(vectors), top(vectors), base(vectors), total(vectors);
  Space factors(vectors), scores(kTokens * vectors), products(p.q * values.row / kLanes);
  float* sums_of_values = reinterpret_cast<float*>(products.data());
  float* terms = reinterpret_cast<float*>(scores.data());
  MeanQuery mean(keys.row + values.row);
  Space plain(values.row / kLanes);
  for (int64_t c = 0; c < vectors; ++c) top.data()[c] = filled(kNothing);
  for (int64_t first = begin; first < end; first += kTokens) {
    const int64_t size = std::min(kTokens, end - first);
    Blocks tile{p.keys, p.values, p.log_masses, p.tilts, p.n, p.k, p.v, p.q, p.size,
                terms - first * p.q, nullptr, nullptr, nullptr, nullptr};
    scores_of_tokens(tile, first, first + size, space.data(), of_tile.data());
    raise_tops(of_tile.data(), vectors, values.row, top.data(), total.data(), sums_of_values);
    for (int64_t c = 0; c < vectors; ++c) {
      const Floats x = top.data()[c], gap = x - load(p.guesses + c * kLanes);
      base.data()[c] = x == kNothing ? Floats{} : x;
      const Floats factor = exp_of_negative(gap < Floats{} ? gap : Floats{});
      factors.data()[c] = factor * factor * load(p.counted + c * kLanes);
    }
    const float *key = keys.tile(first, size), *value = values.tile(first, size);
    Floats at_mean[kTokens / kLanes];
    for (int64_t i = 0; i < size; i += kLanes) {
      Floats averages[kLanes] = {}, bounds[kLanes] = {}, squares[kLanes] = {};
      const int64_t count = std::min<int64_t>(kLanes, size - i);
      for (int64_t r = 0; r < count; ++r) {
        float* at = terms + (i + r) * p.q;
        // memory works on the next tile while this one is computed: a sixth of the time
        if (const int64_t later = first + i + r + kTokens; later < end) {
          prefetch_row(p.keys + later * p.k, p.k);
          prefetch_row(p.values + later * p.v, p.v);
        }
        for (int64_t c = 0; c < vectors; ++c) {
          const Floats score = load(at + c * kLanes);
          const Floats term = exp_of_negative(score - base.data()[c]);
          store(at + c * kLanes, term);
          total.data()[c] += term;
          averages[r] += score * load(p.shares + c * kLanes);
          bounds[r] += term * term * factors.data()[c];
        }
        for (int64_t c = 0; c < values.row; c += kLanes) {
          const Floats x = load(value + (i + r) * values.row + c);
          squares[r] += x * x;
        }
      }
      float found[3][kLanes];
      store(found[0], sums(averages));
      store(found[1], sums(bounds));
      store(found[2], sums(squares));
      for (int64_t r = 0; r < kLanes; ++r)  // no weight: 0 times -inf is NaN
        if (r >= count || (p.log_masses && p.log_masses[first + i + r] == kNothing))
          found[0][r] = kNothing;
      at_mean[i / kLanes] = load(found[0]);
      std::memcpy(p.averages + first + i, found[0], count * sizeof(float));
      std::memcpy(p.bounds + first + i, found[1], count * sizeof(float));
      std::memcpy(p.squares + first + i, found[2], count * sizeof(float));
    }
    add_products_of_tile(terms, p.q, value, values.row, size, false, sums_of_values);
    mean.add(at_mean, size, key, keys.row, value, values.row, plain.data());
  }
  std::memcpy(p.tops + block * p.q, top.data(), p.q * sizeof(float));
  std::memcpy(p.totals + block * p.q, total.data(), p.q * sizeof(float));
  for (int64_t a = 0; a < p.q; ++a)
    std::memcpy(p.sums + (block * p.q + a) * p.v, sums_of_values + a * values.row,
                p.v * sizeof(float));
  std::memcpy(p.value_sums + block * p.v, plain.data(), p.v * sizeof(float));
  p.mean_tops[block] = mean.top;
  p.mean_totals[block] = mean.total;
  const float* found = reinterpret_cast<const float*>(mean.sums.data());
  std::memcpy(p.mean_sums + block * (p.k + p.v), found, p.k * sizeof(float));
  std::memcpy(p.mean_sums + block * (p.k + p.v) + p.k, found + keys.row, p.v * sizeof(float));
}

// e^{score - top} for the tokens of a block at one tilt; returns top and adds up the weights.
INLINE float weights_of_block(const Tilted& p, int64_t begin, int64_t end, PaddedRows& keys,
                              Floats* weights, float* total) {
  const int64_t vectors = padded(end - begin) / kLanes;
  Space tilt(keys.row / kLanes);
  std::memcpy(tilt.data(), p.tilt, p.k * sizeof(float));
  float* scores = reinterpret_cast<float*>(weights);
  for (int64_t first = begin; first < end; first += kTokens) {
    const int64_t size = std::min(kTokens, end - first);
    const float* key = keys.tile(first, size);
    for (int64_t i = 0; i < size; i += kLanes) {
      Floats products[kLanes] = {};
      for (int64_t r = 0; r < std::min<int64_t>(kLanes, size - i); ++r)
        for (int64_t c = 0; c < keys.row / kLanes; ++c)
          products[r] += load(key + (i + r) * keys.row + c * kLanes) * tilt.data()[c];
      store(scores + first - begin + i, sums(products));
    }
  }
  for (int64_t i = begin; i < end; ++i) scores[i - begin] += p.log_masses[i];
  for (int64_t i = end - begin; i < vectors * kLanes; ++i) scores[i] = kNothing;
  Floats highest = filled(kNothing), sum_of_weights{};
  for (int64_t c = 0; c < vectors; ++c) highest = larger(highest, weights[c]);
  const float top = largest(highest), base = top == kNothing ? 0 : top;
  for (int64_t c = 0; c < vectors; ++c)
    sum_of_weights += weights[c] = exp_of_negative(weights[c] - base);
  *total = sum(sum_of_weights);
  return top;
}

// Tilted moments of one block: mean of keys and values, sum_i w_i (k_i - mean)(k_i - mean)' and
// sum_i w_i (k_i - mean) v_i', for weights w_i relative to the largest.
void moments_of_block(const Tilted& p, int64_t block) {
  const int64_t begin = block * p.size, end = std::min(begin + p.size, p.n);
  PaddedRows keys(p.keys, p.k), values(p.values, p.v);
  const int64_t k = keys.row, v = values.row;
  Space space(padded(p.size) / kLanes), means((k + v) / kLanes);
  Space of_keys(k * k / kLanes), of_values(k * v / kLanes);
  Space centred(kTokens * k / kLanes), scaled(kTokens * k / kLanes);
  p.tops[block] = weights_of_block(p, begin, end, keys, space.data(), p.totals + block);
  const float* weights = reinterpret_cast<const float*>(space.data()) - begin;
  const float total = p.totals[block] > 0 ? p.totals[block] : 1;
  Floats* mean = means.data();
  for (int64_t first = begin; first < end; first += kTokens) {
    const int64_t size = std::min(kTokens, end - first);
    add_products_of_column(weights + first, keys.tile(first, size), k, size, mean);
    add_products_of_column(weights + first, values.tile(first, size), v, size, mean + k / kLanes);
  }
  for (int64_t c = 0; c < (k + v) / kLanes; ++c) mean[c] /= total;
  float* moved = reinterpret_cast<float*>(centred.data());
  float* weighted = reinterpret_cast<float*>(scaled.data());
  float* key_sums = reinterpret_cast<float*>(of_keys.data());
  float* value_sums = reinterpret_cast<float*>(of_values.data());
  for (int64_t first = begin; first < end; first += kTokens) {
    const int64_t size = std::min(kTokens, end - first);
    const float *key = keys.tile(first, size), *value = values.tile(first, size);
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < k; c += kLanes) {
        const Floats x = load(key + i * k + c) - mean[c / kLanes];
        store(moved + i * k + c, x);
        store(weighted + i * k + c, weights[first + i] * x);
      }
    add_products_of_tile(weighted, k, moved, k, size, true, key_sums);
    add_products_of_tile(weighted, k, value, v, size, false, value_sums);
  }
  const float* found = reinterpret_cast<const float*>(mean);
  std::memcpy(p.means + block * (p.k + p.v), found, p.k * sizeof(float));
  std::memcpy(p.means + block * (p.k + p.v) + p.k, found + k, p.v * sizeof(float));
  for (int64_t a = 0; a < p.k; ++a) {
    for (int64_t b = 0; b < p.k; ++b)
      p.key_sums[(block * p.k + a) * p.k + b] = key_sums[std::min(a, b) * k + std::max(a, b)];
    std::memcpy(p.value_sums + (block * p.k + a) * p.v, value_sums + a * v, p.v * sizeof(float));
  }
}

// sum_q c_jq t_iq^2 for the tokens of one block, three rows c_j.
void square_sums_of_block(const Terms& p, int64_t block) {
  const int64_t begin = block * p.size, end = std::min(begin + p.size, p.n);
  const float* coefficients = p.coefficients + block * 3 * p.q;
  for (int64_t first = begin; first < end; first += kLanes) {
    Floats products[3][kLanes] = {};
    const int64_t size = std::min<int64_t>(kLanes, end - first);
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < p.q; c += kLanes) {
        const Floats term = load(p.terms + (first + i) * p.q + c), square = term * term;
        for (int j = 0; j < 3; ++j) products[j][i] += square * load(coefficients + j * p.q + c);
      }
    for (int j = 0; j < 3; ++j) {
      const Floats row = sums(products[j]);
      std::memcpy(p.found + j * p.n + first, &row, size * sizeof(float));
    }
  }
}
