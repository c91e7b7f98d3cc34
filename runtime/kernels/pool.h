// A thread pool for many short parallel loops a second, on cores that others use too.
//
// OpenMP's loops end when every thread has arrived; a thread that the kernel has descheduled then
// holds up all others for milliseconds, hundreds of times a step. Here threads take pieces of a loop
// as they come, the caller too, and the loop ends when its pieces are done: a thread that does not
// run is not waited for. Between loops the threads spin for a moment, then sleep.
//
// One loop at a time, from one thread. Threads are started by the first loop, so a process may fork
// before it; what forks after it has no threads but its own and still ends its loops.

#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

class Pool {
 public:
  void set_threads(int threads) { wanted_ = std::max(0, threads - 1); }

  // Call body(i) for i in [0, items), in any order, `grain` at a time.
  template <typename Body>
  void run(int64_t items, int64_t grain, const Body& body) {
    if (items <= grain || wanted_ == 0) {
      for (int64_t i = 0; i < items; ++i) body(i);
      return;
    }
    while (started_ < wanted_) {
      std::thread([this] { work(); }).detach();
      ++started_;
    }
    items_ = items;
    grain_ = grain;
    body_ = &body;
    call_ = [](const void* body, int64_t i) { (*static_cast<const Body*>(body))(i); };
    next_ = 0;
    open_ = true;
    epoch_.fetch_add(1);
    if (sleeping_ > 0) futex(FUTEX_WAKE_PRIVATE, INT32_MAX);
    take_pieces();
    open_ = false;
    while (inside_ != 0) _mm_pause();
  }

 private:
  static constexpr int SPINS = 2000;  // some 50 to 100 microseconds

  void work() {
    uint32_t seen = 0;
    for (;;) {
      for (int spin = 0; epoch_ == seen && spin < SPINS; ++spin) _mm_pause();
      if (epoch_ == seen) {
        sleeping_.fetch_add(1);
        futex(FUTEX_WAIT_PRIVATE, seen);  // returns at once if the epoch has changed
        sleeping_.fetch_sub(1);
        continue;
      }
      seen = epoch_;
      // Once inside, the loop cannot end and its fields cannot change; if it has ended, stay out.
      inside_.fetch_add(1);
      if (open_) take_pieces();
      inside_.fetch_sub(1);
    }
  }

  void take_pieces() {
    int64_t begin;
    while ((begin = next_.fetch_add(grain_)) < items_)
      for (int64_t i = begin, end = std::min(items_, begin + grain_); i < end; ++i) call_(body_, i);
  }

  void futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch_), operation, value, nullptr, nullptr, 0);
  }

  int wanted_ = 0, started_ = 0;
  int64_t items_ = 0, grain_ = 1;
  const void* body_ = nullptr;
  void (*call_)(const void*, int64_t) = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> open_{false};
};

// Never destroyed: its threads may outlive main.
inline Pool& pool() {
  static Pool* the_pool = new Pool;
  return *the_pool;
}
