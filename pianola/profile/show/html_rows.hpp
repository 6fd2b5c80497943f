#pragma once
#include <pianola/profile/show/timeline_picture.hpp>

#include <string>

namespace pianola::profiling {

/// What the rows of a picture and the events in them are called, as HTML. Borrows what it is made from.
class RowWords {
 public:
  RowWords(const Timeline& timeline, const Analysis& analysis, const TimelinePicture& picture)
      : timeline_(timeline), analysis_(analysis), picture_(picture) {}

  /// "stream 7", "host calls".
  [[nodiscard]] std::string label(const PictureRow& row) const;
  /// "kernels, copies and memsets".
  [[nodiscard]] std::string content(const PictureRow& row) const;
  /// "Memcpy HtoD, 2.0 MiB", "idle: synchronization, cudaStreamSynchronize".
  [[nodiscard]] std::string event(const PictureRow& row, std::size_t event) const;
  /// A mark's name, duration and begin, on two lines; of a merged one how many it stands for.
  [[nodiscard]] std::string title(const PictureRow& row, const Mark& mark) const;
  [[nodiscard]] std::string name(NameId name) const;
  /// As readable().
  [[nodiscard]] std::string kernel(NameId name) const;
  /// From the begin of the picture: "4.56 ms".
  [[nodiscard]] std::string since_begin(Nanoseconds time) const;
  /// The part of the picture's time before `time`, 0 to 1.
  [[nodiscard]] double place(Nanoseconds time) const;

 private:
  const Timeline& timeline_;
  const Analysis& analysis_;
  const TimelinePicture& picture_;
};

/// Units across the drawing, whatever time it shows; the script knows it.
inline constexpr double kDrawingWidth = 100'000;

/// The rows as an SVG drawing that stretches with the page, with labels and an axis over it.
[[nodiscard]] std::string drawing(const TimelinePicture& picture, const RowWords& words);

}  // namespace pianola::profiling
