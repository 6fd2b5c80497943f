#pragma once

namespace pianola::fp8 {

// Note [Delayed scales] in one launch. A block has 32 tensors, each of which has a column of the history: 32 threads read it, 32 rows
// each, before any of them is written. A history is longer than that piece by piece, from its oldest row on.
inline constexpr int kScalesTensors = 32, kScalesThreads = 1024;
inline constexpr const char* kScalesCode = R"cuda(
constexpr int kTensors = TENSORS, kRows = THREADS / TENSORS, kEach = 32;
constexpr float kLargestFloat = 3.402823466e+38f;

// @param history  [length, tensors], the first row what was noted.
extern "C" __global__ void __launch_bounds__(kTensors * kRows)
    update_scales(float* history, float* scale, const long long* updates, const float* limits, int length, int tensors, float divisor, int most_recent, long long interval) {
  __shared__ float largest[kRows][kTensors];
  const int in_block = threadIdx.x % kTensors, first_row = threadIdx.x / kTensors, tensor = blockIdx.x * kTensors + in_block;
  const bool is_there = tensor < tensors;
  const float noted = is_there ? history[tensor] : 0.0f;
  const bool is_noted = noted != 0.0f && fabsf(noted) <= kLargestFloat;
  float amax = noted;
  for (int begin = 1; begin < length; begin += kRows * kEach) {
    float rows[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int next = begin + kRows * k + first_row + 1;
      rows[k] = is_there && next < length ? history[static_cast<long long>(next) * tensors + tensor] : noted;
      amax = fmaxf(amax, rows[k]);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int row = begin + kRows * k + first_row;
      if (is_noted && row < length) history[static_cast<long long>(row) * tensors + tensor] = rows[k];
    }
  }
  largest[first_row][in_block] = amax;
  __syncthreads();
  if (first_row != 0 || !is_there) return;
  history[tensor] = 0.0f;
  if (!is_noted || *updates % interval != 0) return;
  for (int row = 0; row < kRows && !most_recent; ++row) amax = fmaxf(amax, largest[row][in_block]);
  scale[tensor] = fminf(limits[tensor] / divisor / (most_recent ? noted : amax), kLargestFloat);
}
)cuda";

}  // namespace pianola::fp8
