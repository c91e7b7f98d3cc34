// A thread pool for many short parallel loops a second, on cores that others use too.
//
// OpenMP's loops end when every thread has arrived; a thread that the kernel has descheduled then
// holds up all others for milliseconds, hundreds of times a step. Here each thread, the caller too,
// takes its own share of a loop piece by piece and then helps with the others'; the loop ends when
// its pieces are done, so a thread that does not run is not waited for. Between loops the threads
// spin for a moment, then sleep.
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
  void set_threads(int threads) { threads_ = std::clamp(threads, 1, MAX_THREADS); }

  // Call body(i) for i in [0, items), in any order, `grain` at a time.
  template <typename Body>
  void run(int64_t items, int64_t grain, const Body& body) {
    if (items <= grain || threads_ == 1) {
      for (int64_t i = 0; i < items; ++i) body(i);
      return;
    }
    while (started_ < threads_) {
      std::thread([this, own = started_] { work(own); }).detach();
      ++started_;
    }
    grain_ = grain;
    for (int t = 0; t < threads_; ++t) {
      shares_[t].next = items * t / threads_;
      shares_[t].end = items * (t + 1) / threads_;
    }
    body_ = &body;
    call_ = [](const void* body, int64_t i) { (*static_cast<const Body*>(body))(i); };
    open_ = true;
    epoch_.fetch_add(1);
    if (sleeping_ > 0) futex(FUTEX_WAKE_PRIVATE, INT32_MAX);
    take_pieces(0);
    open_ = false;
    while (inside_ != 0) _mm_pause();
  }

 private:
  static constexpr int SPINS = 2000;  // some 50 to 100 microseconds
  static constexpr int MAX_THREADS = 256;

  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void work(int own) {
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
      if (open_) take_pieces(own);
      inside_.fetch_sub(1);
    }
  }

  void take_pieces(int own) {
    for (int t = 0; t < threads_; ++t) {
      Share& share = shares_[(own + t) % threads_];
      int64_t begin;
      while ((begin = share.next.fetch_add(grain_)) < share.end)
        for (int64_t i = begin, end = std::min(share.end, begin + grain_); i < end; ++i)
          call_(body_, i);
    }
  }

  void futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&epoch_), operation, value, nullptr, nullptr, 0);
  }

  int threads_ = 1, started_ = 1;  // the caller is thread 0
  int64_t grain_ = 1;
  const void* body_ = nullptr;
  void (*call_)(const void*, int64_t) = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  Share shares_[MAX_THREADS];
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> open_{false};
};

// Never destroyed: its threads may outlive main.
inline Pool& pool() {
  static Pool* the_pool = new Pool;
  return *the_pool;
}
