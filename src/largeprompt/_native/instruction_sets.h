// Compiles the file KERNEL once for each instruction set, each in its own namespace;
// FOR_THIS_MACHINE chooses at run time.
//
// Only the number of lanes differs. Standard headers must be included before, so that they are not
// compiled for an instruction set that the machine may lack.

#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
namespace largeprompt::with_512_bits {
#define LANES 16
#include "lanes.h"
#include KERNEL
#undef LANES
}
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace largeprompt::with_256_bits {
#define LANES 8
#include "lanes.h"
#include KERNEL
#undef LANES
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace largeprompt::with_128_bits {
#define LANES 4
#include "lanes.h"
#include KERNEL
#undef LANES
}

// The function of that name for this machine.
#if defined(__x86_64__)
#define FOR_THIS_MACHINE(name)                                       \
  (__builtin_cpu_supports("avx512f")                                 \
       ? largeprompt::with_512_bits::name                            \
       : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") \
             ? largeprompt::with_256_bits::name                      \
             : largeprompt::with_128_bits::name)
#else
#define FOR_THIS_MACHINE(name) largeprompt::with_128_bits::name
#endif
