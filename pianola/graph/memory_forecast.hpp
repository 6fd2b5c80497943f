#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/account/memory_user.hpp>
#include <pianola/memory/show/picture.hpp>

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// What a graph of a step would take, told before there is one. Bytes in whole units of 512.
struct PIANOLA_API MemoryForecast {
  c10::Device device = c10::Device(c10::kCPU);
  std::size_t operations = 0;              ///< Of a run.
  std::size_t blocks = 0;                  ///< That it was handed out.
  std::uint64_t handed_out = 0;            ///< Bytes of all of them.
  std::uint64_t bound = 0;                 ///< The most in use at a time: no pool holds the step in less.
  std::uint64_t pool = 0;                  ///< Of a pool that torch's allocator fills: segments, and fragments in them.
  std::uint64_t planned = 0;               ///< Of one whose blocks lie where a plan puts them.
  std::uint64_t left = 0;                  ///< In use when the step is over: results, gradients, what it keeps.
  std::uint64_t copied = 0;                ///< Of outside tensors that the step writes, which a capture copies aside.
  std::uint64_t executable = 0;            ///< About, of the executable; see graph/account/executable_forecast.hpp.
  std::optional<std::uint64_t> free = {};  ///< What the driver has left for a pool. Unknown on the CPU.
  std::uint64_t cached = 0;                ///< Unused in torch's allocator, outside of pools: for the copies alone.
  std::uint64_t returnable = 0;            ///< Of that, what torch.cuda.empty_cache() gives back.
  std::string peak_place;                  ///< The operation in which most is in use.
  std::vector<MemoryUser> at_peak;         ///< The largest first.
  memory::Picture picture;

  /// Whether a capture finds room: the pool and the executable in what the driver has left, the copies in what torch holds as well.
  /// Unknown where that is.
  [[nodiscard]] std::optional<bool> fits() const;
  /// The same once torch.cuda.empty_cache() was called.
  [[nodiscard]] std::optional<bool> would_fit() const;
  /// "a capture takes 3.1 GiB of the driver and 96.0 MiB for copies, and the driver has 2.0 GiB left"
  [[nodiscard]] std::string numbers() const;
  /// What is said of that, in a sentence.
  [[nodiscard]] std::string verdict() const;
  [[nodiscard]] Report report() const;
  /// A page with the picture: who lives when, and where a plan puts it.
  [[nodiscard]] std::string to_html() const { return memory::to_html(picture); }
};

/// Runs a step `warmup` times, and once more while what torch's allocator hands out is noted: to tell what a graph of it would take.
///
///     std::cout << pianola::predict_memory([&] { train_step(batch); }, device).report().to_text();
///
/// The runs are the step's own: nothing is put back. On CUDA the pool is what `torch.cuda.graph` takes for the step, but for the
/// workspaces of cuBLAS, and for what other streams hold on to until a capture is over. On the CPU it is what it would be there if
/// kernels took the same scratch; the tape itself keeps all results.
///
/// @param warmup  0 or more. What the first run makes and keeps (states of optimizers, workspaces) is no part of the forecast then.
/// @throws UsageError  `warmup` is negative, or a capture is open.
/// @throws DeviceError, UnsupportedError  As Graph.
/// @throws CaptureError  The step does what cannot be observed.
/// Whatever the step throws reaches the caller unchanged.
/// Threads:  On the CPU, memory of the calling thread counts; on CUDA that of all.
[[nodiscard]] PIANOLA_API MemoryForecast predict_memory(const std::function<void()>& step, c10::Device device,
                                                        int warmup = 1);

}  // namespace pianola
