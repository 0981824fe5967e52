// A parallel loop on the caller's thread and XLA's thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace largeprompt {

// Calls turn(i) for i = 0, .., turns - 1 on all free threads and returns when all calls have
// ended. The caller takes part and waits only for calls that have begun, so a busy pool cannot
// cause a deadlock.
template <typename Turn>
void shared_loop(xla::ffi::ThreadPool& pool, int64_t turns, const Turn& turn) {
  struct State {
    std::atomic<int64_t> next{0}, ended{0};
  };
  auto state = std::make_shared<State>();
  // a helper that starts after the end finds nothing to do and never touches `turn`
  auto work = [state, turns, &turn] {
    for (int64_t i; (i = state->next.fetch_add(1)) < turns;) {
      turn(i);
      state->ended.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), turns) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(std::function<void()>(work));
  work();
  while (state->ended.load(std::memory_order_acquire) < turns) std::this_thread::yield();
}

}  // namespace largeprompt
