#pragma once
#include <pianola/profile/timeline.hpp>

namespace pianola::fuzz {

/// Does with a timeline that was read what the program does: analyses, decides, reports as text and JSON. Looks whether times,
/// shares and counts are such as can be.
/// @param draws  Makes a page and writes a trace too, which take most of the time.
void judge(const Timeline& timeline, bool draws);

}  // namespace pianola::fuzz
