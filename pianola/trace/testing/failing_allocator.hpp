#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pianola::testing {

// Torch's, but for one allocation that finds no memory; and counts the blocks that are in use.
class FailingAllocator final : public c10::Allocator {
 public:
  // Tensors may outlive the test.
  static FailingAllocator& of_the_process() {
    static auto* const one = new FailingAllocator;
    return *one;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes > 0 && countdown_ > 0 && --countdown_ == 0) {
      failed_ = true;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory for ", bytes, " bytes, says the test");
    }
    c10::DataPtr data = torch_->allocate(bytes);
    if (data.get() != nullptr && data.compare_exchange_deleter(torch_->raw_deleter(), &free_counted)) ++live;
    return data;
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { torch_->copy_data(to, from, bytes); }

  /// The `number`-th allocation from now on fails; 0: none does.
  void fail_at(int number) {
    countdown_ = number;
    failed_ = false;
  }
  [[nodiscard]] bool has_failed() const { return failed_; }

  static inline std::atomic<std::int64_t> live = 0;

 private:
  static void free_counted(void* block) {
    if (block != nullptr) --live;
    c10::GetDefaultCPUAllocator()->raw_deleter()(block);
  }

  c10::Allocator* torch_ = c10::GetDefaultCPUAllocator();
  int countdown_ = 0;
  bool failed_ = false;
};

}  // namespace pianola::testing
