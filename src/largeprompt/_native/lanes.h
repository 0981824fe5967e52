// Vectors of LANES floats, in the compiler's vector types. Included once for each instruction
// set, see instruction_sets.h.

constexpr int kLanes = LANES;
using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));

constexpr float kNothing = -__builtin_inff();  // the log of weight 0

// Zeros, aligned as vectors must be: std::vector does not promise that.
class Space {
 public:
  explicit Space(size_t size) : data_(::operator new(size * sizeof(Floats), kAligned)) {
    std::memset(data_, 0, size * sizeof(Floats));
  }
  ~Space() { ::operator delete(data_, kAligned); }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;
  Floats* data() { return static_cast<Floats*>(data_); }

 private:
  static constexpr std::align_val_t kAligned{sizeof(Floats)};
  void* data_;
};

INLINE Floats filled(float value) { return value - Floats{}; }

INLINE Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

INLINE void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

INLINE float sum(Floats x) {
  float total[kLanes];
  store(total, x);
  for (int step = kLanes / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) total[i] += total[i + step];
  return total[0];
}

#ifdef __clang__
INLINE Floats sums(Floats* x) {
  Floats found;
  for (int i = 0; i < kLanes; ++i) found[i] = sum(x[i]);
  return found;
}
#else
// Runs of `step` lanes: the even ones of a and b plus the odd ones.
template <int step>
INLINE Floats sums_of_neighbours(Floats a, Floats b) {
  Ints even{};
  for (int i = 0; i < kLanes; ++i) {
    const int run = i / step;
    even[i] = run / 2 * 2 * step + i % step + run % 2 * kLanes;
  }
  return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, even + step);
}

// Returns the sum of x[i] in lane i, for kLanes vectors x, which are overwritten: sixteen sums
// in the time of three.
template <int step = kLanes / 2>
INLINE Floats sums(Floats* x) {
  for (int i = 0; i < step; ++i) x[i] = sums_of_neighbours<step>(x[i], x[i + step]);
  if constexpr (step > 1) return sums<step / 2>(x);
  return x[0];
}
#endif

INLINE float largest(Floats x) {
  float top[kLanes];
  store(top, x);
  for (int step = kLanes / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) top[i] = top[i] > top[i + step] ? top[i] : top[i + step];
  return top[0];
}

// e^x for x <= 0, to 1e-7 relative; 0 below -87, where floats lose digits; NaN for NaN.
INLINE Floats exp_of_negative(Floats x) {
  const Floats low = filled(-87.0f);
  // x = n log 2 + r, |r| <= log(2)/2; adding and subtracting 1.5 * 2^23 rounds to a whole number
  const Floats shifted = x * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  // of least relative error, 2e-9, among the polynomials of degree 6
  Floats p = filled(1.3836794533e-3f);
  p = p * r + 8.3748567850e-3f;
  p = p * r + 4.1668228805e-2f;
  p = p * r + 1.6666419804e-1f;
  p = p * r + 4.9999991059e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Words power = (reinterpret_cast<Words>(shifted) << 23) + reinterpret_cast<Words>(p);
  const Floats found = x < low ? Floats{} : reinterpret_cast<Floats>(power);
  return x == x ? found : x;
}

// -log x for x in [2^-33, 1], to 1e-7 relative.
INLINE Floats minus_log(Floats x) {
  // x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt 2
  const Ints bits = reinterpret_cast<Ints>(x) - 0x3F3504F3;
  const Floats n = __builtin_convertvector(bits >> 23, Floats);
  const Floats f = reinterpret_cast<Floats>((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
  // log(1 + f) = 2 artanh s, s = f / (2 + f)
  const Floats s = f / (2.0f + f), y = s * s;
  Floats p = filled(2.0f / 9);
  p = p * y + 2.0f / 7;
  p = p * y + 2.0f / 5;
  p = p * y + 2.0f / 3;
  // f - s (f - ...) keeps the digits of small f: log(1 + f) = f - s f + s^3 p
  return -(n * 0.69314718f + (f - s * (f - y * p)));
}

INLINE Floats square_root(Floats x) {
  Floats root;
  for (int i = 0; i < kLanes; ++i) root[i] = __builtin_sqrtf(x[i]);
  return root;
}
