// A character GPT learns the lines of a file. Lines are of any length and padded to three, each iteration is one graph, and
// the losses are those of eager.
//
//     train_gpt [FILE]
#include <apps/demo/char_gpt.hpp>
#include <apps/demo/text.hpp>
#include <pianola/pianola.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Microbatches = std::vector<c10::IValue>;
constexpr std::int64_t kSteps = 60;
constexpr int kMicrobatches = 2, kLines = 8;

// Lines of a text, those of a batch of about one length, which another batch need not have. A microbatch is as long as its
// longest.
class LineStream {
 public:
  LineStream(const std::filesystem::path& file, const pianola::demo::Text& text) {
    std::string all;
    for (std::int64_t i = 0; i < text.size(); ++i) all += text.symbol(text.tokens()[i].item<std::int64_t>());
    std::istringstream stream(all);
    for (std::string line; std::getline(stream, line);) {
      if (line.size() >= 8) lines_.push_back(text.encode(line.substr(0, 97)));
    }
    std::sort(lines_.begin(), lines_.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    std::printf("%s: %zu lines, %lld characters\n", file.filename().c_str(), lines_.size(),
                static_cast<long long>(text.vocabulary()));
  }

  Microbatches next() {
    const std::size_t first = random_() % (lines_.size() - kMicrobatches * kLines);
    Microbatches batch;
    for (std::size_t i = 0; i < kMicrobatches; ++i) batch.emplace_back(microbatch(first + i * kLines));
    return batch;
  }

 private:
  c10::Dict<std::string, at::Tensor> microbatch(std::size_t first) const {
    const std::size_t longest = lines_[first + kLines - 1].size() - 1;
    const auto shape = std::vector<std::int64_t>{kLines, static_cast<std::int64_t>(longest)};
    at::Tensor tokens = at::zeros(shape, at::kLong), targets = at::full(shape, -100, at::kLong);
    for (std::size_t row = 0; row < kLines; ++row) {
      const std::vector<std::int64_t>& line = lines_[first + row];
      for (std::size_t i = 0; i + 1 < line.size(); ++i) {
        tokens.data_ptr<std::int64_t>()[row * longest + i] = line[i];
        targets.data_ptr<std::int64_t>()[row * longest + i] = line[i + 1];
      }
    }
    c10::Dict<std::string, at::Tensor> batch;
    batch.insert("tokens", tokens);
    batch.insert("targets", targets);
    return batch;
  }

  std::vector<std::vector<std::int64_t>> lines_;
  std::mt19937_64 random_{1};
};

std::vector<at::Tensor> tensors_of(const std::vector<pianola::NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const pianola::NamedTensor& one : named) tensors.push_back(one.tensor);
  return tensors;
}

// What one training run has, and one iteration of it. Eager and graphed run the same code.
struct Training {
  Training(const pianola::demo::Text& text, c10::Device on)
      : device(on),
        model((at::manual_seed(1),
               pianola::demo::CharGptConfig{.vocabulary = text.vocabulary(), .layers = 2, .width = 32, .context = 96}),
              on) {}

  // [readme]
  c10::IValue step(const Microbatches& microbatches) {
    optimizer.zero_grad();
    at::Tensor total = at::zeros({}, at::TensorOptions(device));
    for (const c10::IValue& batch : microbatches) {
      const auto parts = batch.toGenericDict();
      const at::Tensor logits = model.logits(parts.at("tokens").toTensor(), pianola::demo::CharGpt::Mode::train);
      const at::Tensor targets = parts.at("targets").toTensor();
      const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten()) / kMicrobatches;
      loss.backward();
      total += loss.detach();
    }
    pianola::clip_grad_norm_(optimizer, 1.0);
    watch.check("loss", total);
    optimizer.step({.found_inf = watch.found_inf()});  // a bad step leaves the parameters as they were
    watch.end_step();
    return total;
  }
  // [readme]

  c10::Device device;
  pianola::demo::CharGpt model;
  pianola::AdamW optimizer{tensors_of(model.parameters()), {.lr = 4e-3}};
  pianola::LearningRateSchedule schedule{
      optimizer, pianola::LearningRate::warmup(5, pianola::LearningRate::cosine(kSteps - 5)), {4e-3}};
  pianola::FiniteWatch watch{device};
  pianola::StaticInputs inputs{
      device,
      {.buckets = {.sizes = {32, 64, 96}, .padding = {{.tensor = "tokens"}, {.tensor = "targets", .value = -100}}}}};
};

// The loss of each iteration; `iterate` makes one, of the batch that is in the static inputs.
template <typename Iterate>
std::vector<at::Tensor> train(Training& run, LineStream lines, Iterate&& iterate) {
  std::vector<at::Tensor> losses;
  run.inputs.prefetch(lines.next());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    run.inputs.advance();
    losses.push_back(iterate().toTensor().clone());
    if (step + 1 < kSteps) run.inputs.prefetch(lines.next());  // travels while the device still works
    run.schedule.step();
    run.watch.poll();
  }
  run.watch.wait();
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  const c10::Device device(at::globalContext().hasCUDA() ? "cuda:0" : "cpu");
  const std::filesystem::path file = argc > 1 ? argv[1] : pianola::demo::default_text();
  const auto text = pianola::demo::Text::read(file);
  const LineStream lines(file, text);

  Training eager(text, device);
  const auto expected = train(eager, lines, [&] { return eager.step(eager.inputs.microbatches()); });

  Training graphed(text, device);
  pianola::FullIteration iteration([&](const Microbatches& microbatches) { return graphed.step(microbatches); });
  const auto actual = train(graphed, lines, [&] { return iteration(graphed.inputs); });

  std::size_t equal = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) equal += at::equal(expected[i], actual[i]) ? 1 : 0;
  std::printf("loss %.3f -> %.3f; %zu of %zu losses equal eager's, bit for bit\n", actual.front().item<double>(),
              actual.back().item<double>(), equal, expected.size());
  std::printf("%s\n%s", iteration.info().report().to_text().c_str(), graphed.inputs.report().to_text().c_str());
  return equal == expected.size() && actual.back().item<double>() < actual.front().item<double>() ? 0 : 1;
}
