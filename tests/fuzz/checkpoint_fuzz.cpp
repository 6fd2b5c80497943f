// Checkpoints. The input says how a good one is damaged: two bytes for its new length, of 65536ths, where the first of them is not
// 0; then three for each changed byte, its place and what it becomes. So there is no corpus that a new format would make old.
#include <tests/fuzz/fuzz_target.hpp>

#include <pianola/core/error.hpp>
#include <pianola/training/checkpoint.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <fstream>
#include <iterator>
#include <string>

using namespace pianola;

namespace {

// What stands at the end says whether there is a checksum: a file without one, of an earlier version, is taken as it is.
constexpr std::size_t kEnd = 160;

struct Run {
  explicit Run(double begin) : weight(at::arange(64.0).add_(begin).reshape({8, 8})), scale(at::full({3}, begin)) {
    checkpoint.add("model", {{.name = "weight", .tensor = weight}, {.name = "scale", .tensor = scale}});
  }
  [[nodiscard]] bool is(const Run& other) const { return weight.equal(other.weight) && scale.equal(other.scale); }

  at::Tensor weight, scale;
  Checkpoint checkpoint;
};

std::string good_file(const std::string& path) {
  Run(1).checkpoint.save(path);
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::size_t number(const std::uint8_t* bytes) { return (std::size_t{bytes[0]} << 8U) | bytes[1]; }

std::string damaged(std::string file, const std::uint8_t* data, std::size_t size) {
  if (size >= 2 && data[0] != 0) file.resize(file.size() * number(data) / 65536);
  for (std::size_t i = 2; i + 3 <= size && file.size() > kEnd; i += 3) {
    file[number(data + i) % (file.size() - kEnd)] = static_cast<char>(data[i + 2]);
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::InputFile file(".pt");
  static const std::string good = good_file(file.write(data, 0));
  static const Run saved(1), before(2);
  const std::string bytes = damaged(good, data, size);
  Run run(2);
  try {
    run.checkpoint.load(file.write(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
    fuzz::expect(run.is(saved), "what is loaded is what was saved");
  } catch (const UsageError&) {
    fuzz::expect(run.is(before), "what is refused changes nothing");
  }
  return 0;
}
