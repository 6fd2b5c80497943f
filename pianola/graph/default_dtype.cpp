#include <pianola/graph/default_dtype.hpp>

#include <c10/core/DefaultDtype.h>

#include <mutex>

namespace pianola::graph {
namespace {

// Those that have changed it, and what it was before the first.
struct Changes {
  std::mutex mutex;
  int open = 0;
  caffe2::TypeMeta before;

  static Changes& instance() {
    static auto* const changes = new Changes;
    return *changes;
  }
};

}  // namespace

DefaultDtype::~DefaultDtype() {
  if (!changes_) return;
  Changes& changes = Changes::instance();
  const std::lock_guard lock(changes.mutex);
  c10::set_default_dtype(--changes.open == 0 ? changes.before : before_);
}

void DefaultDtype::become(caffe2::TypeMeta dtype) {
  if (c10::get_default_dtype() == dtype) return;
  Changes& changes = Changes::instance();
  const std::lock_guard lock(changes.mutex);
  if (!changes_) {
    before_ = c10::get_default_dtype();
    if (changes.open++ == 0) changes.before = before_;
    changes_ = true;
  }
  c10::set_default_dtype(dtype);
}

}  // namespace pianola::graph
