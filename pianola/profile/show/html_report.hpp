#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/timeline.hpp>

#include <string>

namespace pianola {

struct HtmlOptions {
  std::string title = {};  ///< Of the page: what was profiled, such as "train.py". Empty: the timeline's source.
};

/// The decision, and what it is founded on, as one HTML page for people: verdict and key numbers, reasons and
/// obstacles, a timeline of the iteration of median duration, idle time by cause, kernel durations, predicted times by
/// scope with the call to write, regions and waits.
///
/// The page is complete in itself: nothing is loaded, whatever it is opened with. It follows the reader's light or dark scheme, prints
/// in light, and needs JavaScript, which makes it of the figures as JSON: page.html, page.css and page.js. It stays below 1 MB
/// however long the timeline is: events that are short and close to each other are drawn as one. Names may hold any bytes.
///
/// `analysis` and `decision` must be of `timeline`, whose events they name by their places.
/// Threads: any; reads its arguments only.
[[nodiscard]] PIANOLA_API std::string to_html(const Timeline& timeline, const Analysis& analysis,
                                              const Decision& decision, const HtmlOptions& options = {});

}  // namespace pianola
