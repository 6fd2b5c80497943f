#pragma once

namespace pianola::fp8 {

// Note [Quantised in one read]
// A block of threads takes a tile of 128 x 128 and reads it once, into registers: each thread 8 x 8 elements. Scales of blocks are made
// of the tile itself; the others are given, or made of what an earlier kernel noted. The bytes are written as they lie, and, through
// shared memory, transposed. NaN is left out of an amax by fmaxf. The PTX conversion is that of the hardware (to the nearest, ties to
// even, saturating, NaN to NaN); what is infinite is put in behind it.
//
// Compiled for:  ELEMENT  0: bfloat16, 1: float16, 2: float32      E5M2  1: e5m2, 0: e4m3      POWERS  1: scales are powers of two
//                TILE, THREADS  as below      LARGEST  of the type      SCALES  0: one that is given, 1: one for all, 2: rows, 3: 1 x 128, 4: 128 x 128
//
// Matrices are dense, [rows, columns]. Pointers that are not wanted are null.
inline constexpr int kQuantizeTile = 128, kQuantizeThreads = 256;
inline constexpr const char* kQuantizeCode = R"cuda(
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

constexpr int kTile = TILE, kThreads = THREADS, kGroups = TILE / 8;  // of 8 rows, and of 8 columns
static_assert(kThreads == kGroups * kGroups, "a thread has 8 x 8 elements");
constexpr float kLargestFloat = 3.402823466e+38f;

#if ELEMENT == 2
typedef float Stored;
#else
typedef u16 Stored;
#endif
constexpr int kPerWord = 4 / sizeof(Stored);

// Words are kept as they are read: an element of 16 bits in a register of its own would need twice as many.
__device__ __forceinline__ float as_float(u32 word, int place) {
#if ELEMENT == 0
  return __uint_as_float(place == 0 ? word << 16 : word & 0xffff0000u);
#elif ELEMENT == 1
  float value;
  const u16 bits = static_cast<u16>(place == 0 ? word : word >> 16);
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return __uint_as_float(word);
#endif
}

__device__ __forceinline__ u32 bits_of(Stored value) {
#if ELEMENT == 2
  return __float_as_uint(value);
#else
  return value;
#endif
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float scale_of(float amax) {
  float scale = 1.0f;
  if (amax != 0.0f && amax < infinity()) scale = fminf(LARGEST / amax, kLargestFloat);
#if POWERS
  scale = __uint_as_float(__float_as_uint(scale) & 0x7f800000u);
#endif
  return scale;
}

// Two elements; the first is the lower byte.
__device__ __forceinline__ u16 cast_pair(float first, float second) {
  u16 pair;
#if E5M2
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
#else
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
#endif
  return pair;
}

__device__ __forceinline__ u32 cast_infinite(float value) {
  return (value < 0.0f ? 0x80u : 0u) | (E5M2 ? 0x7cu : 0x7fu);
}

struct Eight {
  u32 low, high;
};

// Eight elements of one scale.
template <class Value>
__device__ __forceinline__ Eight cast_eight(const Value& value, float scale, bool has_infinite) {
  u32 pairs[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) pairs[k] = cast_pair(value(2 * k) * scale, value(2 * k + 1) * scale);
  Eight bytes = {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
  if (has_infinite) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (fabsf(value(k)) != infinity()) continue;
      u32& half = k < 4 ? bytes.low : bytes.high;
      half = (half & ~(0xffu << 8 * (k & 3))) | cast_infinite(value(k)) << 8 * (k & 3);
    }
  }
  return bytes;
}

// The largest of a block of threads, in each of them.
__device__ __forceinline__ float largest_of_block(float value, float* shared) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, lane));
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
  __syncthreads();
  value = shared[threadIdx.x & 7];
#pragma unroll
  for (int lane = 4; lane > 0; lane >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, lane));
  return value;
}

// Magnitudes are ordered as their bits are.
__device__ __forceinline__ void note(float* noted, float amax) {
  if (amax > *reinterpret_cast<volatile float*>(noted)) atomicMax(reinterpret_cast<int*>(noted), __float_as_int(amax));
}

struct Matrix {
  const Stored* values;
  i64 rows, columns;
  bool is_aligned;  // rows begin at 16 bytes, and are multiples of 8
};

// Where a block of threads works.
struct Tile {
  i64 row, column;    // of its first element
  int rows, columns;  // that are there

  __device__ __forceinline__ Tile(const Matrix& matrix, u32 number) {
    const u32 across = static_cast<u32>((matrix.columns + kTile - 1) / kTile);
    row = static_cast<i64>(number / across) * kTile;
    column = static_cast<i64>(number % across) * kTile;
    rows = static_cast<int>(min(static_cast<i64>(kTile), matrix.rows - row));
    columns = static_cast<int>(min(static_cast<i64>(kTile), matrix.columns - column));
  }
};

// The 8 x 8 elements of a thread; zero outside of the matrix.
struct Piece {
  u32 words[8][8 / kPerWord];

  static __device__ __forceinline__ int row() { return (threadIdx.x >> 4) * 8; }  // in its tile
  static __device__ __forceinline__ int column() { return (threadIdx.x & 15) * 8; }

  __device__ __forceinline__ void read(const Matrix& matrix, const Tile& tile) {
    const Stored* const from = matrix.values + tile.row * matrix.columns + tile.column;
    const u32 width = static_cast<u32>(matrix.columns);
    if (matrix.is_aligned && tile.rows == kTile && tile.columns == kTile) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint4* const row_from = reinterpret_cast<const uint4*>(from + static_cast<i64>(row() + i) * width + column());
#pragma unroll
        for (int k = 0; k < 8 / kPerWord; k += 4) {
          const uint4 four = __ldg(row_from + k / 4);
          words[i][k] = four.x;
          words[i][k + 1] = four.y;
          words[i][k + 2] = four.z;
          words[i][k + 3] = four.w;
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int k = 0; k < 8 / kPerWord; ++k) {
        u32 word = 0;
#pragma unroll
        for (int j = 0; j < kPerWord; ++j) {
          const int at_column = column() + kPerWord * k + j;
          if (row() + i < tile.rows && at_column < tile.columns)
            word |= bits_of(from[static_cast<i64>(row() + i) * width + at_column]) << 16 * j;
        }
        words[i][k] = word;
      }
    }
  }

  __device__ __forceinline__ float at(int i, int j) const { return as_float(words[i][j / kPerWord], j % kPerWord); }
  __device__ __forceinline__ float of_row(int i) const {
    float amax = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) amax = fmaxf(amax, fabsf(at(i, j)));
    return amax;
  }
  __device__ __forceinline__ float of_column(int j) const {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(at(i, j)));
    return amax;
  }
  __device__ __forceinline__ float amax() const {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = fmaxf(amax, of_row(i));
    return amax;
  }
};

// Of a row of the tile: of 16 threads beside each other.
__device__ __forceinline__ float largest_of_row(float value) {
#pragma unroll
  for (int lane = 8; lane > 0; lane >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, lane));
  return value;
}

// Of the columns of the tile: of[column] for all threads.
__device__ __forceinline__ void largest_of_columns(const Piece& piece, float (*groups)[kTile], float* of) {
#pragma unroll
  for (int j = 0; j < 8; ++j) groups[threadIdx.x >> 4][(threadIdx.x & 15) * 8 + j] = piece.of_column(j);
  __syncthreads();
  if (threadIdx.x < kTile) {
    float amax = 0.0f;
    for (int k = 0; k < kGroups; ++k) amax = fmaxf(amax, groups[k][threadIdx.x]);
    of[threadIdx.x] = amax;
  }
  __syncthreads();
}

// What the tile is written to.
struct Written {
  u8* rows;
  float* rows_inverse;
  u8* columns;
  float* columns_inverse;
};
static_assert(sizeof(Matrix) == 32 && sizeof(Written) == 32, "as where they are launched");

__device__ __forceinline__ void write_eight(u8* to, Eight bytes, int count, bool is_aligned) {
  if (is_aligned && count >= 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(bytes.low, bytes.high);
    return;
  }
  for (int k = 0; k < min(count, 8); ++k) to[k] = static_cast<u8>((k < 4 ? bytes.low : bytes.high) >> 8 * (k & 3));
}

// The bytes of a thread's rows, or columns.
struct Bytes {
  Eight of[8];
};

template <class Scale>
__device__ __forceinline__ Bytes cast_rows(const Piece& piece, bool has_infinite, const Scale& scale) {
  Bytes bytes;
#pragma unroll
  for (int i = 0; i < 8; ++i) bytes.of[i] = cast_eight([&](int j) { return piece.at(i, j); }, scale(i), has_infinite);
  return bytes;
}

template <class Scale>
__device__ __forceinline__ Bytes cast_columns(const Piece& piece, bool has_infinite, const Scale& scale) {
  Bytes bytes;
#pragma unroll
  for (int j = 0; j < 8; ++j) bytes.of[j] = cast_eight([&](int i) { return piece.at(i, j); }, scale(j), has_infinite);
  return bytes;
}

// 4 x 4 bytes, of four words.
__device__ __forceinline__ void transpose_four(u32 a, u32 b, u32 c, u32 d, u32& first, u32& second, u32& third, u32& fourth) {
  const u32 low = __byte_perm(a, b, 0x5140), high = __byte_perm(a, b, 0x7362);
  const u32 low_below = __byte_perm(c, d, 0x5140), high_below = __byte_perm(c, d, 0x7362);
  first = __byte_perm(low, low_below, 0x5410);
  second = __byte_perm(low, low_below, 0x7632);
  third = __byte_perm(high, high_below, 0x5410);
  fourth = __byte_perm(high, high_below, 0x7632);
}

__device__ __forceinline__ Bytes transposed(const Bytes& bytes) {
  Bytes to;
  const Eight* const from = bytes.of;
  transpose_four(from[0].low, from[1].low, from[2].low, from[3].low, to.of[0].low, to.of[1].low, to.of[2].low, to.of[3].low);
  transpose_four(from[4].low, from[5].low, from[6].low, from[7].low, to.of[0].high, to.of[1].high, to.of[2].high, to.of[3].high);
  transpose_four(from[0].high, from[1].high, from[2].high, from[3].high, to.of[4].low, to.of[5].low, to.of[6].low, to.of[7].low);
  transpose_four(from[4].high, from[5].high, from[6].high, from[7].high, to.of[4].high, to.of[5].high, to.of[6].high, to.of[7].high);
  return to;
}

__device__ __forceinline__ void write_rows(const Bytes& bytes, const Tile& tile, const Matrix& matrix, u8* rows) {
  u8* const to = rows + tile.row * matrix.columns + tile.column;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (Piece::row() + i < tile.rows)
      write_eight(to + static_cast<i64>(Piece::row() + i) * matrix.columns + Piece::column(), bytes.of[i], tile.columns - Piece::column(), matrix.is_aligned);
  }
}

// Through shared memory: units of 8 bytes, whose places are mixed so that threads beside each other meet in no bank.
__device__ __forceinline__ void write_columns(const Bytes& bytes, const Tile& tile, const Matrix& matrix, u8* columns, uint2 (*units)[kGroups]) {
  const int group = threadIdx.x >> 4, beside = threadIdx.x & 15;
#pragma unroll
  for (int j = 0; j < 8; ++j) units[beside * 8 + j][group ^ beside] = make_uint2(bytes.of[j].low, bytes.of[j].high);
  __syncthreads();
  u8* const to = columns + tile.column * matrix.rows + tile.row;
  const int half = threadIdx.x & 7, row = half * 16;  // 16 bytes of a column
  if (row >= tile.rows) return;
#pragma unroll
  for (int pass = 0; pass < kTile / (kThreads / 8); ++pass) {
    const int k = pass * (kThreads / 8) + (threadIdx.x >> 3);
    if (k >= tile.columns) return;
    const uint2 low = units[k][(2 * half) ^ (k >> 3)], high = units[k][(2 * half + 1) ^ (k >> 3)];
    u8* const at = to + static_cast<i64>(k) * matrix.rows + row;
    if (matrix.rows % 16 == 0) {
      *reinterpret_cast<uint4*>(at) = make_uint4(low.x, low.y, high.x, high.y);
    } else {
      write_eight(at, {low.x, low.y}, tile.rows - row, false);
      write_eight(at + 8, {high.x, high.y}, tile.rows - row - 8, false);
    }
  }
}

// @param scale    SCALES == 0: what to cast with.
// @param noted    SCALES == 0: where the largest magnitude is noted. 1: `parts` of them. 2: those of the rows, then of the columns.
extern "C" __global__ void __launch_bounds__(kThreads, ELEMENT == 2 ? 2 : 3)
    quantize(Matrix matrix, Written out, const float* scale, float* noted, int parts, const bool* is_wanted) {
  if (is_wanted != nullptr && !*is_wanted) return;
  __shared__ union {
    uint2 units[kTile][kGroups];
    float groups[kGroups][kTile];
  } shared;
  __shared__ float of_columns[kTile];
  // What an earlier kernel read last is in the cache still.
  const Tile tile(matrix, SCALES == 1 || SCALES == 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  Piece piece;
  piece.read(matrix, tile);
  const bool has_rows = out.rows != nullptr, has_columns = out.columns != nullptr;
  const float largest = piece.amax();
  const bool has_infinite = largest == infinity();
#if SCALES == 0 || SCALES == 1 || SCALES == 4
#if SCALES == 0
  const float one = *scale;
#elif SCALES == 1
  float amax = 0.0f;
  for (int k = threadIdx.x; k < parts; k += kThreads) amax = fmaxf(amax, noted[k]);
  const float one = scale_of(largest_of_block(amax, of_columns));
#else
  const float one = scale_of(largest_of_block(largest, of_columns));
#endif
#if SCALES == 4
  if (threadIdx.x == 0) {
    const i64 row = tile.row / kTile, column = tile.column / kTile;
    if (has_rows) out.rows_inverse[row * (matrix.columns / kTile) + column] = 1.0f / one;
    if (has_columns) out.columns_inverse[column * (matrix.rows / kTile) + row] = 1.0f / one;
  }
#else
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (has_rows) *out.rows_inverse = 1.0f / one;
    if (has_columns) *out.columns_inverse = 1.0f / one;
  }
#endif
  const Bytes bytes = cast_rows(piece, has_infinite, [&](int) { return one; });
  if (has_rows) write_rows(bytes, tile, matrix, out.rows);
  if (has_columns) write_columns(transposed(bytes), tile, matrix, out.columns, shared.units);
#if SCALES == 0
  if (noted != nullptr) {
    const float amax = largest_of_block(largest, of_columns);
    if (threadIdx.x == 0) note(noted, amax);
  }
#endif
#else
  if (has_rows) {
    float of_rows[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = Piece::row() + i;
#if SCALES == 2
      of_rows[i] = scale_of(row < tile.rows ? noted[tile.row + row] : 0.0f);
      if (tile.column == 0 && Piece::column() == 0 && row < tile.rows) out.rows_inverse[tile.row + row] = 1.0f / of_rows[i];
#else
      of_rows[i] = scale_of(largest_of_row(piece.of_row(i)));
      if (Piece::column() == 0 && row < tile.rows)
        out.rows_inverse[(tile.row + row) * (matrix.columns / kTile) + tile.column / kTile] = 1.0f / of_rows[i];
#endif
    }
    write_rows(cast_rows(piece, has_infinite, [&](int i) { return of_rows[i]; }), tile, matrix, out.rows);
  }
  if (has_columns) {
#if SCALES == 3
    largest_of_columns(piece, shared.groups, of_columns);
#endif
    if (threadIdx.x < kTile) {
      const int column = threadIdx.x;
#if SCALES == 2
      const float made = scale_of(column < tile.columns ? noted[(has_rows ? matrix.rows : 0) + tile.column + column] : 0.0f);
      if (tile.row == 0 && column < tile.columns) out.columns_inverse[tile.column + column] = 1.0f / made;
#else
      const float made = scale_of(of_columns[column]);
      if (column < tile.columns) out.columns_inverse[(tile.column + column) * (matrix.rows / kTile) + tile.row / kTile] = 1.0f / made;
#endif
      of_columns[column] = made;
    }
    __syncthreads();
    write_columns(cast_columns(piece, has_infinite, [&](int j) { return of_columns[Piece::column() + j]; }), tile, matrix, out.columns, shared.units);
  }
#endif
}

// What the kernel above reads from `noted`: zeros before, but for one for all, of which each block writes its own.
//
// @param is_noted  SCALES == 0: of all, into one number that is kept if it is larger.
extern "C" __global__ void __launch_bounds__(kThreads)
    note_amaxes(Matrix matrix, float* rows, float* columns, const bool* is_wanted) {
  if (is_wanted != nullptr && !*is_wanted) return;
  __shared__ float groups[kGroups][kTile], of_columns[kTile];
  Piece piece;
#if SCALES == 2
  const Tile tile(matrix, blockIdx.x);
  piece.read(matrix, tile);
  if (rows != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float amax = largest_of_row(piece.of_row(i));
      if (Piece::column() == 0 && Piece::row() + i < tile.rows) note(rows + tile.row + Piece::row() + i, amax);
    }
  }
  if (columns != nullptr) {
    largest_of_columns(piece, groups, of_columns);
    if (threadIdx.x < tile.columns) note(columns + tile.column + threadIdx.x, of_columns[threadIdx.x]);
  }
#else
  float amax = 0.0f;
  const u32 tiles = static_cast<u32>((matrix.columns + kTile - 1) / kTile * ((matrix.rows + kTile - 1) / kTile));
  for (u32 number = blockIdx.x; number < tiles; number += gridDim.x) {
    piece.read(matrix, Tile(matrix, number));
    amax = fmaxf(amax, piece.amax());
  }
  amax = largest_of_block(amax, of_columns);
  if (threadIdx.x == 0) {
#if SCALES == 0
    note(rows, amax);
#else
    rows[blockIdx.x] = amax;
#endif
  }
#endif
}
)cuda";

}  // namespace pianola::fp8
