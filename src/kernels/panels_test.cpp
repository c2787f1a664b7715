#include "kernels/panels.hpp"

#include <catch_amalgamated.hpp>

#include "core/buffer.hpp"
#include "kernels/quantize.hpp"
#include "kernels/testing.hpp"

namespace wf::kernels {
namespace {

using namespace testing;

constexpr DType kAll[] = {DType::kF32, DType::kF16, DType::kBF16};

// `values` as a file would hold them, one byte off every alignment.
std::vector<unsigned char> file_of(const std::vector<float>& values, DType dtype) {
  std::vector<unsigned char> bytes(1 + values.size() * block_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == DType::kF32 ? uint16_t{0} : narrow(dtype, values[i]);
    std::memcpy(bytes.data() + 1 + i * block_bytes(dtype), dtype == DType::kF32 ? static_cast<const void*>(&values[i]) : &half,
                block_bytes(dtype));
  }
  return bytes;
}

// What is left of a value stored as `a`, then as `b`.
float stored(float value, DType a, DType b) {
  if (a != DType::kF32) value = widen(a, narrow(a, value));
  if (b != DType::kF32) value = widen(b, narrow(b, value));
  return value;
}

TEST_CASE("Narrowing rounds to nearest, ties to even", "[kernels][panels]") {
  struct Case {
    float value;
    uint16_t half, brain;
  };
  const Case cases[] = {
      {0.0f, 0x0000, 0x0000},
      {-0.0f, 0x8000, 0x8000},
      {1.0f, 0x3c00, 0x3f80},
      {-2.0f, 0xc000, 0xc000},
      {1.0f + 0x1p-11f, 0x3c00, 0x3f80},             // halfway for f16: to even
      {1.0f + 0x1p-11f + 0x1p-20f, 0x3c01, 0x3f80},  // above
      {1.0f + 0x3p-11f, 0x3c02, 0x3f80},             // halfway: to even, upwards
      {1.0f + 0x1p-8f, 0x3c04, 0x3f80},              // halfway for bf16
      {1.0f + 0x3p-8f, 0x3c0c, 0x3f82},
      {65504.0f, 0x7bff, 0x4780},
      {65519.996f, 0x7bff, 0x4780},
      {65520.0f, 0x7c00, 0x4780},
      {-1e30f, 0xfc00, 0xf14a},
      {0x1p-14f, 0x0400, 0x3880},
      {0x1p-24f, 0x0001, 0x3380},
      {0x1p-25f, 0x0000, 0x3300},  // halfway to the smallest: to even, zero
      {0x1.8p-25f, 0x0001, 0x3340},
      {0x3p-25f, 0x0002, 0x33c0},  // halfway between 1 and 2 steps
      {-0x1.ff8p-15f, 0x83ff, 0xb880},
      {-0x1.ffcp-15f, 0x8400, 0xb880},  // halfway between the largest subnormal and the smallest normal
      {0x1.fffp-15f, 0x0400, 0x3880},   // rounds up to a normal number
      {kInf, 0x7c00, 0x7f80},
      {-kInf, 0xfc00, 0xff80},
      {3.4028235e38f, 0x7c00, 0x7f80},
  };
  for (const Case& c : cases) {
    CAPTURE(c.value);
    CHECK(narrow(DType::kF16, c.value) == c.half);
    CHECK(narrow(DType::kBF16, c.value) == c.brain);
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    CHECK(std::isnan(widen(dtype, narrow(dtype, kNaN))));
    CHECK(std::isnan(widen(dtype, narrow(dtype, std::bit_cast<float>(0x7f800001u)))));
    size_t wrong = 0;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float wide = widen(dtype, static_cast<uint16_t>(bits));
      if (!std::isnan(wide)) wrong += narrow(dtype, wide) != bits;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Conversion of every length", "[kernels][panels]") {
  for (const DType dtype : kAll) {
    for (size_t n = 1; n <= 2 * kLongest; ++n) {
      const std::vector<float> values = normals(n, n, 100.0f);
      const auto bytes = file_of(values, dtype);
      for (size_t skew = 0; skew < 4; ++skew) {
        Row out(n, skew);
        convert(bytes.data() + 1, dtype, out.data(), n);
        size_t wrong = 0;
        for (size_t i = 0; i < n; ++i) wrong += out[i] != stored(values[i], dtype, DType::kF32);
        CHECK((wrong == 0 && out.intact()));
      }
    }
  }
}

TEST_CASE("Packing by slabs of rows or of columns, and reading rows back", "[kernels][panels]") {
  for (const DType store : kAll) {
    for (const DType from : kAll) {
      for (const size_t F : {1, 3, 15, 16, 17, 40}) {
        for (const size_t D : {1, 2, 5, 16, 33}) {
          const std::vector<float> W = normals(F * D, F * 100 + D);
          std::vector<float> transposed(F * D);
          for (size_t f = 0; f < F; ++f) {
            for (size_t k = 0; k < D; ++k) transposed[k * F + f] = W[f * D + k];
          }
          const auto rows = file_of(W, from), columns = file_of(transposed, from);
          const size_t bytes = panel_bytes(store, F, D), size = block_bytes(from);
          const size_t length = D + (store == DType::kF16);
          REQUIRE(bytes == (F + 15) / 16 * 16 * length * block_bytes(store));
          Buffer whole(bytes, "test"), slabs(bytes, "test"), turned(bytes, "test"), turned_slabs(bytes, "test");
          pack_rows(store, whole.data(), F, D, 0, F, rows.data() + 1, from);
          for (size_t f = 0; f < F; f += 7) {
            pack_rows(store, slabs.data(), F, D, f, std::min<size_t>(7, F - f), rows.data() + 1 + f * D * size, from);
          }
          pack_columns(store, turned.data(), F, D, 0, D, 0, F, columns.data() + 1, from);
          // A fused (D, 2 F) file would give each part its own rows; here two parts of one matrix, three inputs at a time.
          const size_t split = F / 2;
          for (size_t k = 0; k < D; k += 3) {
            const size_t count = std::min<size_t>(3, D - k);
            for (const auto& [begin, end] : {std::pair{size_t{0}, split}, std::pair{split, F}}) {
              if (begin == end) continue;
              std::vector<float> part;
              for (size_t i = 0; i < count; ++i) part.insert(part.end(), &transposed[(k + i) * F] + begin, &transposed[(k + i) * F] + end);
              const auto bytes_of_part = file_of(part, from);
              pack_columns(store, turned_slabs.data(), F, D, k, count, begin, end - begin, bytes_of_part.data() + 1, from);
            }
          }
          CHECK(std::memcmp(whole.data(), slabs.data(), bytes) == 0);
          CHECK(std::memcmp(whole.data(), turned.data(), bytes) == 0);
          CHECK(std::memcmp(whole.data(), turned_slabs.data(), bytes) == 0);
          size_t wrong = 0;
          for (size_t f = 0; f < F; ++f) {
            Row out(D, f % 4);
            unpack_row(store, whole.data(), F, D, f, out.data());
            for (size_t k = 0; k < D; ++k) wrong += out[k] != stored(W[f * D + k], from, store);
            wrong += !out.intact();
          }
          CHECK(wrong == 0);
          // The layout itself, and zeros where the last panel has no row.
          const auto element = [&](size_t i) {
            if (store == DType::kF32) return static_cast<const float*>(whole.data())[i];
            return widen(store, static_cast<const uint16_t*>(whole.data())[i]);
          };
          for (size_t f = 0; f < (F + 15) / 16 * 16; ++f) {
            for (size_t k = 0; k < D; ++k) {
              const float value = element((f / 16 * length + k) * 16 + f % 16);
              wrong += f < F ? value != stored(W[f * D + k], from, store) : value != 0.0f;
            }
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("Rows with infinities or NaN are marked in f16", "[kernels][panels]") {
  const size_t F = 20, D = 7;
  std::vector<float> W = normals(F * D, 1);
  W[3 * D + 6] = kNaN, W[17 * D] = -kInf, W[18 * D + 1] = 65504.0f;
  for (const bool columns : {false, true}) {
    Buffer panels(panel_bytes(DType::kF16, F, D), "test");
    if (columns) {
      std::vector<float> transposed(F * D);
      for (size_t f = 0; f < F; ++f) {
        for (size_t k = 0; k < D; ++k) transposed[k * F + f] = W[f * D + k];
      }
      pack_columns(DType::kF16, panels.data(), F, D, 0, D, 0, F, transposed.data(), DType::kF32);
    } else {
      pack_rows(DType::kF16, panels.data(), F, D, 0, F, W.data(), DType::kF32);
    }
    const uint16_t* stored = static_cast<const uint16_t*>(panels.data());
    for (size_t f = 0; f < 32; ++f) {
      const bool marked = stored[(f / 16 * (D + 1) + D) * 16 + f % 16] != 0;
      CHECK(marked == (f == 3 || f == 17));
    }
  }
}

// Blocks that gguf-py 0.17 (gguf.quants.quantize) made of 32 numbers, and what it reads from them.
constexpr unsigned char kQ8File[] = {0x5b, 0x22, 0xdb, 0xf6, 0x5e, 0x25, 0xa3, 0x00, 0xdd, 0x08, 0xa5, 0x0e, 0x0d, 0x59, 0x12, 0x1d, 0xac,
                                     0x7f, 0x94, 0x3e, 0xed, 0xce, 0xdb, 0xda, 0x15, 0xfa, 0x54, 0x99, 0x00, 0xce, 0x2c, 0x89, 0xed, 0x0c};
constexpr float kQ8Values[] = {-0.45928192138671875f, -0.1241302490234375f, 1.1668243408203125f,
                               0.45928192138671875f,  -1.1544113159179688f, 0.0f,
                               -0.43445587158203125f, 0.09930419921875f,    -1.1295852661132812f,
                               0.1737823486328125f,   0.16136932373046875f, 1.1047592163085938f,
                               0.2234344482421875f,   0.35997772216796875f, -1.042694091796875f,
                               1.5764541625976562f,   -1.340606689453125f,  0.7696075439453125f,
                               -0.23584747314453125f, -0.6206512451171875f, -0.45928192138671875f,
                               -0.4716949462890625f,  0.26067352294921875f, -0.0744781494140625f,
                               1.042694091796875f,    -1.2785415649414062f, 0.0f,
                               -0.6206512451171875f,  0.546173095703125f,   -1.4771499633789062f,
                               -0.23584747314453125f, 0.148956298828125f};
constexpr unsigned char kQ4File[] = {0x4f, 0xb2, 0xfa, 0x49, 0x92, 0xb6, 0xae, 0xa8, 0x7a,
                                     0x87, 0x3e, 0xe7, 0x87, 0xb2, 0x57, 0xf6, 0x9d, 0x70};
constexpr float kQ4Values[] = {-0.394287109375f,  -0.1971435546875f, 1.182861328125f,
                               0.394287109375f,   -1.182861328125f,  0.0f,
                               -0.394287109375f,  0.1971435546875f,  -1.182861328125f,
                               0.1971435546875f,  0.1971435546875f,  1.182861328125f,
                               0.1971435546875f,  0.394287109375f,   -0.9857177734375f,
                               1.5771484375f,     -1.3800048828125f, 0.78857421875f,
                               -0.1971435546875f, -0.5914306640625f, -0.394287109375f,
                               -0.394287109375f,  0.1971435546875f,  0.0f,
                               0.9857177734375f,  -1.182861328125f,  0.0f,
                               -0.5914306640625f, 0.5914306640625f,  -1.3800048828125f,
                               -0.1971435546875f, 0.1971435546875f};

constexpr unsigned char kQ41File[] = {0x07, 0x31, 0x80, 0xba, 0x74, 0x32, 0x57, 0x6a, 0x5d, 0xa8,
                                      0x75, 0x54, 0xab, 0xbf, 0x09, 0x72, 0x33, 0x7f, 0x29, 0x80};
constexpr float kQ41Values[] = {
    -0.18408203125f,   -0.498291015625f, 0.2872314453125f,  0.758544921875f,   1.2298583984375f,  0.4443359375f,     -0.0269775390625f,
    -0.18408203125f,   0.9156494140625f, 1.5440673828125f,  0.6014404296875f,  -0.498291015625f,  -0.3411865234375f, 1.5440673828125f,
    0.6014404296875f,  -0.8125f,         0.2872314453125f,  -0.3411865234375f, -0.0269775390625f, 0.130126953125f,   -0.0269775390625f,
    0.758544921875f,   0.2872314453125f, -0.0269775390625f, 0.758544921875f,   0.9156494140625f,  -0.8125f,          0.2872314453125f,
    -0.3411865234375f, 0.2872314453125f, -0.498291015625f,  0.4443359375f};

TEST_CASE("Blocks of Q8_0, Q4_0 and Q4_1 are kept as they are", "[kernels][panels]") {
  const size_t F = 18, D = 96;
  for (const DType from : {DType::kQ8, DType::kQ4, DType::kQ4_1}) {
    const DType store = from == DType::kQ8 ? DType::kQ8 : DType::kQ4;
    const auto* file = from == DType::kQ8 ? kQ8File : from == DType::kQ4 ? kQ4File : kQ41File;
    const float* values = from == DType::kQ8 ? kQ8Values : from == DType::kQ4 ? kQ4Values : kQ41Values;
    const size_t bytes = block_bytes(from);
    std::vector<unsigned char> rows;
    for (size_t b = 0; b < F * D / 32; ++b) {
      rows.insert(rows.end(), file, file + bytes);
      if (b % 3 != 0) continue;
      rows[b * bytes + 1] ^= 0x80;  // a negative scale is a scale too
      if (from == DType::kQ4_1) rows[b * bytes + 3] ^= 0x80;
    }
    Buffer panels(panel_bytes(store, F, D), "test");
    CHECK(pack_rows(store, panels.data(), F, D, 5, F - 5, rows.data() + 5 * 3 * bytes, from));
    CHECK(pack_rows(store, panels.data(), F, D, 0, 5, rows.data(), from));
    size_t wrong = 0;
    for (size_t f = 0; f < F; ++f) {
      Row out(D, f % 4);
      unpack_row(store, panels.data(), F, D, f, out.data());
      for (size_t k = 0; k < D; ++k) wrong += out[k] != (k < 32 ? -1.0f : 1.0f) * values[k % 32];
      wrong += !out.intact();
    }
    CHECK(wrong == 0);
    rows[1] = 0x7c, rows[0] = 0;  // infinite
    CHECK_FALSE(pack_rows(store, panels.data(), F, D, 0, 1, rows.data(), from));
  }
}

TEST_CASE("Quantised panels: slabs of rows or of columns, any source, every length of row", "[kernels][panels]") {
  for (const DType store : {DType::kQ8, DType::kQ4}) {
    for (const DType from : kAll) {
      for (const size_t F : {1, 15, 16, 17, 40, 300}) {
        for (const size_t D : {1, 31, 32, 33, 64, 172, 300}) {
          if (F == 300 && D != 33 && D != 64) continue;
          std::vector<float> W = normals(F * D, F * 100 + D);
          for (float& value : W) value = stored(value, from, DType::kF32);
          std::vector<float> transposed(F * D);
          for (size_t f = 0; f < F; ++f) {
            for (size_t k = 0; k < D; ++k) transposed[k * F + f] = W[f * D + k];
          }
          const auto rows = file_of(W, from), columns = file_of(transposed, from);
          const size_t bytes = panel_bytes(store, F, D), size = block_bytes(from);
          REQUIRE(bytes == (F + 15) / 16 * ((D + 31) / 32) * (store == DType::kQ8 ? 576 : 320));
          Buffer whole(bytes, "test"), slabs(bytes, "test"), turned(bytes, "test"), turned_slabs(bytes, "test");
          bool finite = pack_rows(store, whole.data(), F, D, 0, F, rows.data() + 1, from);
          for (size_t f = 0; f < F; f += 7) {
            finite &= pack_rows(store, slabs.data(), F, D, f, std::min<size_t>(7, F - f), rows.data() + 1 + f * D * size, from);
          }
          finite &= pack_columns(store, turned.data(), F, D, 0, D, 0, F, columns.data() + 1, from);
          for (size_t k = 0; k < D; k += 64) {
            finite &= pack_columns(store, turned_slabs.data(), F, D, k, std::min<size_t>(64, D - k), 0, F,
                                   columns.data() + 1 + k * F * size, from);
          }
          CHECK(finite);
          CHECK(std::memcmp(whole.data(), slabs.data(), bytes) == 0);
          CHECK(std::memcmp(whole.data(), turned.data(), bytes) == 0);
          CHECK(std::memcmp(whole.data(), turned_slabs.data(), bytes) == 0);
          // Every row is what its blocks are by themselves.
          size_t wrong = 0;
          for (size_t f = 0; f < F; ++f) {
            Row out(D, f % 4);
            unpack_row(store, whole.data(), F, D, f, out.data());
            for (size_t k = 0; k < D; ++k) {
              if (k % 32 == 0) continue;
              float block[32] = {};
              std::copy_n(&W[f * D + k / 32 * 32], std::min<size_t>(32, D - k / 32 * 32), block);
              Codes codes;
              wrong += !quantise(store, block, codes);
              wrong += out[k] != codes.low + codes.scale * static_cast<float>(codes.codes[k % 32]);
            }
            wrong += !out.intact();
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("Blocks of a file in plain panels, and in others' blocks", "[kernels][panels]") {
  const size_t F = 17, D = 320;
  std::vector<unsigned char> rows;
  for (size_t b = 0; b < F * D / 32; ++b) rows.insert(rows.end(), kQ8File, kQ8File + 34);
  for (const DType store : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4}) {
    Buffer panels(panel_bytes(store, F, D), "test"), turned(panel_bytes(store, D, F), "test");
    CHECK(pack_rows(store, panels.data(), F, D, 0, F, rows.data(), DType::kQ8));
    CHECK(pack_columns(store, turned.data(), D, F, 0, F, 0, D, rows.data(), DType::kQ8));
    Row out(D), column(F);
    unpack_row(store, panels.data(), F, D, 16, out.data());
    unpack_row(store, turned.data(), D, F, 37, column.data());
    size_t wrong = 0;
    if (store == DType::kQ4) {
      for (size_t k = 0; k < D; ++k) wrong += !(std::abs(out[k] - kQ8Values[k % 32]) < 0.12f);
      for (size_t k = 0; k < F; ++k) wrong += !(std::abs(column[k] - kQ8Values[5]) < 0.12f);
    } else {
      for (size_t k = 0; k < D; ++k) wrong += out[k] != stored(kQ8Values[k % 32], store, DType::kF32);
      for (size_t k = 0; k < F; ++k) wrong += column[k] != stored(kQ8Values[5], store, DType::kF32);
    }
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace wf::kernels
