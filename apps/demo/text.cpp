#include <apps/demo/text.hpp>

#include <pianola/core/error.hpp>

#include <ATen/ops/empty.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

namespace pianola::demo {
namespace {

std::string distinct(std::string_view bytes) {
  std::set<char> symbols(bytes.begin(), bytes.end());
  return {symbols.begin(), symbols.end()};
}

}  // namespace

Text::Text(std::string bytes)
    : bytes_(std::move(bytes)), symbols_(distinct(bytes_)), tokens_(at::empty({size()}, at::kLong)) {
  if (bytes_.empty())
    throw UsageError({.what = "the text is empty", .fix = "give a text of a few thousand characters"});
  std::ranges::copy(encode(bytes_), tokens_.mutable_data_ptr<std::int64_t>());
}

Text Text::read(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code error;
  if (!stream || std::filesystem::is_directory(file, error)) {
    throw UsageError({.what = fmt::format("cannot read the text '{}'", file.string()),
                      .fix = "give a readable text file with --text"});
  }
  std::ostringstream content;
  content << stream.rdbuf();
  std::string bytes = std::move(content).str();
  if (bytes.empty()) {
    throw UsageError({.what = fmt::format("the text '{}' is empty", file.string()),
                      .fix = "give a text of a few thousand characters with --text"});
  }
  return Text(std::move(bytes));
}

std::vector<std::int64_t> Text::encode(std::string_view bytes) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(bytes.size());
  for (const char byte : bytes) {
    const auto place = std::ranges::lower_bound(symbols_, byte);
    if (place != symbols_.end() && *place == byte) tokens.push_back(place - symbols_.begin());
  }
  return tokens;
}

std::filesystem::path default_text() {
  static constexpr std::array kCandidates = {
      "/usr/share/common-licenses/GPL-3",
      "/usr/share/common-licenses/GPL-2",
      "/usr/share/common-licenses/Apache-2.0",
      "README.md",
  };
  for (const std::filesystem::path file : kCandidates) {
    if (std::ifstream(file).peek() != std::ifstream::traits_type::eof()) return file;
  }
  throw UsageError({.what = "found neither /usr/share/common-licenses/GPL-3 nor a README.md to learn from",
                    .fix = "name a text file with --text"});
}

BatchStream::BatchStream(const Text& text, std::int64_t batch, std::int64_t context, std::uint64_t seed)
    : tokens_(text.tokens()), batch_(batch), context_(context), random_(seed) {
  if (text.size() < 2 * context) {
    throw UsageError(
        {.what = fmt::format("the text has {} characters, and at least {} are needed", text.size(), 2 * context),
         .fix = "give a longer text with --text"});
  }
}

BatchStream::Batch BatchStream::next() {
  Batch batch{.inputs = at::empty({batch_, context_}, at::kLong), .targets = at::empty({batch_, context_}, at::kLong)};
  std::uniform_int_distribution<std::int64_t> start(0, tokens_.size(0) - context_ - 1);
  const auto* token = tokens_.const_data_ptr<std::int64_t>();
  auto* input = batch.inputs.mutable_data_ptr<std::int64_t>();
  auto* target = batch.targets.mutable_data_ptr<std::int64_t>();
  for (std::int64_t piece = 0; piece < batch_; ++piece) {
    const std::int64_t from = start(random_);
    input = std::copy_n(token + from, context_, input);
    target = std::copy_n(token + from + 1, context_, target);
  }
  return batch;
}

}  // namespace pianola::demo
