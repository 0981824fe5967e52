// Kernel of sums.cc: draws the counters of one prompt and adds up its sums, one block at a
// time, with a running maximum of the scores.

constexpr int kGroups = kBlock / kLanes;  // vectors of a block

INLINE Words rotated(Words x, int turn) { return x << turn | x >> (32 - turn); }

// Threefry 2x32 with 20 rounds (Salmon et al. 2011) of the blocks (number, counter).
INLINE void threefry(const Prompt& prompt, Words counter, Words& x, Words& y) {
  const uint32_t schedule[3] = {prompt.key[0], prompt.key[1],
                                prompt.key[0] ^ prompt.key[1] ^ 0x1BD11BDAu};
  constexpr int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  x = (prompt.number + schedule[0]) + Words{};
  y = counter + schedule[1];
  for (int group = 0; group < 5; ++group) {
    for (int round = 0; round < 4; ++round) {
      x += y;
      y = x ^ rotated(y, turns[group % 2][round]);
    }
    x += schedule[(group + 1) % 3];
    y += schedule[(group + 2) % 3] + uint32_t(group + 1);
  }
}

// Two standard normals for each counter: R cos, R sin, as prompts/normals.py makes them.
INLINE void normal_pairs(const Prompt& prompt, Words counter, Floats& g, Floats& e) {
  Words first, second;
  threefry(prompt, counter, first, second);
  const Floats high = __builtin_convertvector(reinterpret_cast<Ints>(first >> 8), Floats);
  const Floats low = __builtin_convertvector(reinterpret_cast<Ints>(first & 0xFF), Floats);
  const Floats unit = high * 0x1p-24f + (low * 0x1p-32f + 0x1p-33f);
  const Floats radius = square_root(2.0f * minus_log(unit));
  // the leading bits turn the half circle, the last one chooses the half
  const Floats turn =
      reinterpret_cast<Floats>(second >> 9 | 0x3F800000u) - (1.0f - 0x1p-24f) - 0.5f;
  const Floats y = turn * turn;
  // Taylor series of sin(pi x) and cos(pi x), |x| <= 1/2
  constexpr double pi = 3.14159265358979323846;
  Floats sine{}, cosine{};
  double factor[14] = {1};
  for (int k = 1; k < 14; ++k) factor[k] = factor[k - 1] * pi / k;
  for (int k = 6; k >= 0; --k) {
    const double sign = k % 2 ? -1 : 1;
    sine = sine * y + float(sign * factor[2 * k + 1]);
    cosine = cosine * y + float(sign * factor[2 * k]);
  }
  const Words other_half = (second & 1) << 31 ^ 0x80000000u;  // the sign of the cosine
  g = reinterpret_cast<Floats>(reinterpret_cast<Words>(radius * cosine) ^ other_half);
  e = radius * (turn * sine);
}

// A pair of normals is two tokens: sums of w, w g and w^2.
struct Scores : TwoScores {
  INLINE void add(const Prompt&, Floats g, Floats e, const Floats* weights, Floats* sums) {
    const Floats both[2] = {g, e};
    for (int i = 0; i < 2; ++i) {
      sums[0] += weights[i];
      sums[1] += weights[i] * both[i];
      sums[2] += weights[i] * weights[i];
    }
  }
};

// A pair of normals is one token with the value v = cosine g + sine e: sums of w, w g, w e, w v g,
// w v e, and w^2, w^2 v, w^2 v^2.
struct ScoresAndValues : ScoreAndValue {
  INLINE void add(const Prompt& prompt, Floats g, Floats e, const Floats* weights, Floats* sums) {
    const Floats w = *weights, value = prompt.cosine * g + prompt.sine * e, wv = w * value;
    sums[0] += w;
    sums[1] += w * g;
    sums[2] += w * e;
    sums[3] += wv * g;
    sums[4] += wv * e;
    sums[5] += w * w;
    sums[6] += w * wv;
    sums[7] += wv * wv;
  }
};

// Sums over counters begin, .., end - 1 of a prompt.
template <typename Layout>
INLINE void sum_counters(const Prompt& prompt, int64_t begin, int64_t end, Summary& summary) {
  constexpr int tokens = Layout::per_counter;
  Words lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int groups = (std::min(kBlock, end - first) + kLanes - 1) / kLanes;
    Floats normals[kGroups][2], scores[kGroups][tokens];
    Floats highest = filled(kNothing);
    for (int group = 0; group < groups; ++group) {
      const Words counter = uint32_t(first + group * kLanes) + lane;
      Floats* pair = normals[group];
      normal_pairs(prompt, counter, pair[0], pair[1]);
      for (int i = 0; i < tokens; ++i) {
        const Words token = counter * uint32_t(tokens) + uint32_t(i);
        scores[group][i] = token < prompt.length ? prompt.sigma * pair[i] : filled(kNothing);
        highest = larger(highest, scores[group][i]);
      }
    }
    const float top = largest(highest);
    if (top > summary.top) rescale<Layout>(summary, top);
    Floats sums[Layout::first + Layout::second] = {};
    for (int group = 0; group < groups; ++group) {
      Floats weights[tokens];
      for (int i = 0; i < tokens; ++i) weights[i] = exp_of_negative(scores[group][i] - summary.top);
      Layout::add(prompt, normals[group][0], normals[group][1], weights, sums);
    }
    for (int k = 0; k < Layout::first + Layout::second; ++k) summary.sums[k] += sum(sums[k]);
  }
}

void sum_scores(const Prompt& prompt, int64_t begin, int64_t end, Summary& summary) {
  sum_counters<Scores>(prompt, begin, end, summary);
}

void sum_scores_and_values(const Prompt& prompt, int64_t begin, int64_t end, Summary& summary) {
  sum_counters<ScoresAndValues>(prompt, begin, end, summary);
}
