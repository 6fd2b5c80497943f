// A training step of the demo's GPT, proved equal to eager; and one with an operation changed on purpose, found.
#include <apps/demo/text.hpp>
#include <apps/demo/trainer.hpp>

#include <pianola/pianola.hpp>

#include <ATen/Context.h>

#include <algorithm>
#include <cstdio>
#include <vector>

int main() {
  const c10::Device device(at::hasCUDA() ? c10::kCUDA : c10::kCPU);
  const pianola::demo::Text text = pianola::demo::Text::read(pianola::demo::default_text());
  const pianola::demo::TrainerConfig config{
      .model = {.vocabulary = text.vocabulary(), .layers = 2, .width = 32, .heads = 2, .context = 32}, .batch = 4};
  pianola::demo::Trainer trainer(config, device);
  pianola::demo::BatchStream batches(text, config.batch, config.model.context, config.seed);
  trainer.load(batches.next());

  std::vector<pianola::NamedTensor> state;
  for (const auto& [name, tensor] : trainer.tensors()) state.push_back({name, tensor});
  using Tensors = std::vector<at::Tensor>;
  const auto eager = [&](const Tensors&) { return Tensors{trainer.step()}; };

  at::Tensor loss;
  pianola::Graph graph(device);
  graph.capture([&] { loss = trainer.step(); });
  const auto graphed = [&](const Tensors&) {
    graph.replay();
    return Tensors{loss};
  };
  const pianola::VerifyReport same = pianola::verify(eager, graphed, state, {.subject = "the GPT's step"});
  std::printf("%s\n", same.to_text().c_str());

  at::Tensor changed_loss;
  pianola::Graph changed(device);
  trainer.model().use_exact_gelu(true);
  changed.capture([&] { changed_loss = trainer.step(); });
  trainer.model().use_exact_gelu(false);
  const auto graphed_otherwise = [&](const Tensors&) {
    changed.replay();
    return Tensors{changed_loss};
  };
  const pianola::VerifyReport different =
      pianola::verify(eager, graphed_otherwise, state, {.subject = "the step with another GELU"});
  std::printf("%s\n", different.to_text().c_str());

  // Hardly anything in the loss, but all that the gradient of the GELU reaches, in the first step.
  const bool found = different.verdict == pianola::Verdict::differs &&
                     std::any_of(different.differences.begin(), different.differences.end(),
                                 [](const auto& one) { return one.name == "blocks.0.mlp_in.weight" && one.step == 1; });
  return same.ok() && found ? 0 : 1;
}
