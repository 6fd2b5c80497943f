#pragma once
#include <ATen/Parallel.h>

namespace pianola::bench::cpu {

/// Operations use one thread while it lives.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

}  // namespace pianola::bench::cpu
