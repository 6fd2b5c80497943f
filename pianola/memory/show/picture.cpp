#include <pianola/memory/show/picture.hpp>

#include <pianola/core/embedded_json.hpp>
#include <pianola/memory/show/page_html.hpp>  // of page.html, page.css and page.js

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace pianola::memory {
namespace {

using Json = nlohmann::ordered_json;

Moment end_of(const Picture& picture) {
  Moment end = 1;
  for (const PicturedBlock& block : picture.blocks) {
    end = std::max(end, (block.life.freed == Block::kNever ? block.life.made : block.life.freed) + 1);
  }
  return end;
}

}  // namespace

std::string to_html(const Picture& picture) {
  const Moment end = end_of(picture);
  Json blocks = Json::array();
  for (std::size_t i = 0; i < picture.blocks.size(); ++i) {
    const PicturedBlock& block = picture.blocks[i];
    blocks.push_back({block.life.made, std::min(block.life.freed, end), picture.places.offsets.at(i),
                      in_whole_units(block.life.bytes), block.owner, block.made_in, block.freed_in});
  }
  const Json all = {{"title", picture.title},        {"end", end},
                    {"bytes", picture.places.bytes}, {"bound", picture.places.bound},
                    {"pool", picture.pool},          {"segments", picture.segments},
                    {"owners", picture.owners},      {"blocks", std::move(blocks)}};
  constexpr std::string_view kPlace = "{{picture}}";
  std::string page(kPage);
  return page.replace(page.find(kPlace), kPlace.size(), embedded(all));
}

}  // namespace pianola::memory
