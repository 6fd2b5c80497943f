#pragma once

namespace pianola::bench {

/// Of every model here, so small that what it trains stays near where it began.
inline constexpr double kLearningRate = 1e-5;

}  // namespace pianola::bench
