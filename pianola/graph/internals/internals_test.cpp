#include <pianola/graph/internals.hpp>

#include <pianola/graph/internals/known_internals.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace pianola::internals_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::same;

class InternalsTest : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(InternalsTest);

TEST_P(InternalsTest, ThisTorchIsAsPianolaNeedsIt) {
  const std::vector<Internal> internals = check_internals(device());
  EXPECT_GE(internals.size(), 6U);
  for (const Internal& internal : internals) {
    EXPECT_EQ(internal.trouble, "") << internal.name;
    EXPECT_THAT(internal.used_for, Not(IsEmpty())) << internal.name;
  }
}

TEST_P(InternalsTest, TryingThemTouchesNothingOfTheCaller) {
  seed(3);
  const at::Tensor before = state_of(generator());
  (void)check_internals(device());
  EXPECT_TRUE(same(state_of(generator()), before));
  EXPECT_FALSE(is_capturing());
}

TEST_P(InternalsTest, TheyAreTriedInsideOfWhatTheCallerHasOpen) {
  const at::NoGradGuard no_grad;
  Graph graph(device());
  CaptureScope scope(graph);
  const at::Tensor x = at::zeros({2}, at::TensorOptions(device())) + 1;
  for (const Internal& internal : check_internals(device())) EXPECT_EQ(internal.trouble, "") << internal.name;
  scope.end();
  graph.replay();
  EXPECT_EQ(x.sum().item<float>(), 2);
}

// The caller's home for caches, while it lives.
class CacheHome {
 public:
  explicit CacheHome(const char* home) {
    if (const char* before = std::getenv("XDG_CACHE_HOME"); before != nullptr) before_ = before;
    setenv("XDG_CACHE_HOME", home, 1);
  }
  CacheHome(const CacheHome&) = delete;
  CacheHome& operator=(const CacheHome&) = delete;
  ~CacheHome() { before_.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST_P(InternalsTest, ANoteIsNamedAfterTheBuildsAndLiesInTheHomeOfCaches) {
  const CacheHome home("/somewhere");
  const std::string identity = graph::build_identity(device());
  EXPECT_THAT(identity, ::testing::HasSubstr("libtorch_cpu.so"));
  const fs::path note = graph::note_of(identity);
  EXPECT_EQ(note.parent_path(), "/somewhere/pianola");
  EXPECT_EQ(graph::note_of(identity), note);
  EXPECT_NE(graph::note_of(identity + " rebuilt"), note);
}

}  // namespace
}  // namespace pianola::internals_test
