#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <vector>

namespace pianola::trace {

/// The handles that a collective of torch.distributed returned, by which the host waits for it.
[[nodiscard]] std::vector<c10::intrusive_ptr<c10d::Work>> works_of(c10::ArrayRef<c10::IValue> outputs);

// Note [Collectives that are observed]
// What a Work's Future calls when the collective is done (hooks of DistributedDataParallel that compress, `then`) runs on a thread
// of the process group, or on the thread that registers it if the collective is done by then. A stream sees the second alone. So
// the end of a collective of the CPU is waited for before anybody can register something.

/// Waits. @return  False: it is not done after a while, because another rank has not come so far.
[[nodiscard]] bool waits_until_done(c10::ArrayRef<c10::IValue> outputs);

}  // namespace pianola::trace
