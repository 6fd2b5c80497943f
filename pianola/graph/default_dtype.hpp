#pragma once
#include <c10/util/typeid.h>

namespace pianola::graph {

/// The process's default type, for as long as a part of a step runs that had set another one. It is touched only where it has to change.
/// They nest. Where several threads change it at once, each sets it before its own operations, and the last to end puts back what was
/// there before the first: as in eager mode, operations of threads that change nothing may meet it meanwhile.
class DefaultDtype {
 public:
  DefaultDtype() = default;
  DefaultDtype(const DefaultDtype&) = delete;
  DefaultDtype& operator=(const DefaultDtype&) = delete;
  ~DefaultDtype();

  void become(caffe2::TypeMeta dtype);

 private:
  bool changes_ = false;
  caffe2::TypeMeta before_;  // what it found
};

}  // namespace pianola::graph
