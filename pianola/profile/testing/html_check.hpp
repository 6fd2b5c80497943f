#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::profiling {

/// Finds the first place where a page is not well-formed: an element that is not closed or closes another, an attribute
/// without quotation marks, an & that begins no character reference, a < or > in text, an id that is used twice.
class HtmlCheck {
 public:
  explicit HtmlCheck(std::string_view page) : page_(page) {}

  /// What is wrong, with the text around it; empty where all is right.
  std::string problem() {
    while (at_ < page_.size() && problem_.empty()) {
      if (page_[at_] == '<') {
        markup();
      } else {
        text(std::min(page_.find('<', at_), page_.size()));
      }
    }
    if (problem_.empty() && !open_.empty()) problem_ = "not closed: " + open_.back();
    return problem_;
  }

 private:
  void wrong(const std::string& what) {
    if (problem_.empty()) problem_ = what + " at: " + std::string(page_.substr(at_, 60));
  }

  void references(std::string_view text) {
    for (std::size_t i = text.find('&'); i != std::string_view::npos; i = text.find('&', i + 1)) {
      const std::string_view name = text.substr(i, text.find(';', i) - i);
      constexpr std::array<std::string_view, 5> kKnown = {"&amp", "&lt", "&gt", "&quot", "&#39"};
      if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) wrong("an & that is not escaped");
    }
  }

  void text(std::size_t end) {
    const std::string_view text = page_.substr(at_, end - at_);
    if (text.find('>') != std::string_view::npos) wrong("a > that is not escaped");
    references(text);
    at_ = end;
  }

  void markup() {
    constexpr std::string_view kDoctype = "<!DOCTYPE html>";
    if (page_.substr(at_, kDoctype.size()) == kDoctype) {
      at_ += kDoctype.size();
      return;
    }
    const std::size_t end = tag_end();
    if (end == std::string_view::npos) return wrong("a tag that does not end");
    const std::string_view tag = page_.substr(at_ + 1, end - at_ - 1);
    if (tag.substr(0, 1) == "/") {
      closing(tag.substr(1));
    } else {
      opening(tag);
    }
    if (problem_.empty()) at_ = end + 1;
    if (problem_.empty() && (tag == "script" || tag == "style")) raw(tag);
  }

  // The > that ends the tag, not one inside quotation marks.
  [[nodiscard]] std::size_t tag_end() const {
    bool quoted = false;
    for (std::size_t i = at_; i < page_.size(); ++i) {
      if (page_[i] == '"') quoted = !quoted;
      if (page_[i] == '>' && !quoted) return i;
    }
    return std::string_view::npos;
  }

  void closing(std::string_view name) {
    if (open_.empty() || open_.back() != name) return wrong("closes what is not open");
    open_.pop_back();
  }

  void opening(std::string_view tag) {
    const std::size_t name_end = std::min(tag.find_first_of(" \n"), tag.size());
    const std::string name(tag.substr(0, name_end));
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") != std::string::npos || name.empty()) {
      return wrong("no name of an element");
    }
    attributes(tag.substr(name_end));
    if (name != "meta" && name != "link" && name != "br") open_.push_back(name);
  }

  void attributes(std::string_view rest) {
    while (true) {
      rest.remove_prefix(std::min(rest.find_first_not_of(" \n"), rest.size()));
      if (rest.empty()) return;
      const std::size_t name_end = std::min(rest.find_first_of("= \n"), rest.size());
      const std::string_view name = rest.substr(0, name_end);
      rest.remove_prefix(name_end);
      if (rest.substr(0, 1) != "=") continue;  // one without a value
      const std::size_t end = rest.find('"', 2);
      if (rest.substr(0, 2) != "=\"" || end == std::string_view::npos)
        return wrong("an attribute without quotation marks");
      const std::string_view value = rest.substr(2, end - 2);
      if (value.find('<') != std::string_view::npos) return wrong("a < in an attribute");
      references(value);
      if (name == "id" && !ids_.insert(std::string(value)).second) return wrong("an id that is used twice");
      rest.remove_prefix(end + 1);
    }
  }

  void raw(std::string_view name) {
    const std::size_t end = page_.find("</" + std::string(name) + ">", at_);
    if (end == std::string_view::npos) return wrong("raw text that does not end");
    at_ = end;
  }

  std::string_view page_;
  std::size_t at_ = 0;
  std::vector<std::string> open_;
  std::set<std::string> ids_;
  std::string problem_;
};

inline std::string html_problem(std::string_view page) { return HtmlCheck(page).problem(); }

}  // namespace pianola::profiling
