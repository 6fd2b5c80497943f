#include <pianola/cuda/cupti_library.hpp>

#include <array>

namespace pianola {
namespace {

// The versions whose numbers of entry points are the ones here: numbers are only ever added.
constexpr std::array kCuptiNames = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
constexpr std::array kCuptiNeighbours = {"libcudart.so.13", "libcudart.so.12"};

}  // namespace

void* cupti_library(const std::string& fallback) { return find_library(kCuptiNames, kCuptiNeighbours, fallback); }

}  // namespace pianola
