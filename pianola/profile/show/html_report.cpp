#include <pianola/profile/show/html_report.hpp>

#include <pianola/profile/show/page_html.hpp>  // of page.html, page.css and page.js
#include <pianola/profile/show/page_json.hpp>

#include <string_view>

namespace pianola {

std::string to_html(const Timeline& timeline, const Analysis& analysis, const Decision& decision,
                    const HtmlOptions& options) {
  constexpr std::string_view kPlace = "{{profile}}";
  std::string page(profiling::kPage);
  return page.replace(page.find(kPlace), kPlace.size(),
                      embedded(profiling::page_json(timeline, analysis, decision, options.title)));
}

}  // namespace pianola
