#include "cli/op_operands.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "cuda/memory.h"
#include "cuda/random_fill.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "formats/int4.h"
#include "ops/gpu_matmul/row_exponents.h"

namespace nibble::cli {
namespace {

// Weights that are cycled through, so that none is found in a cache.
constexpr int64_t kColdBytes = int64_t{384} << 20;
constexpr int kNumChoices = 16;
constexpr int32_t kPage = 16;
// Small operands share a block: a GPU's memory is slow to get.
constexpr int64_t kBlockBytes = int64_t{16} << 20;

}  // namespace

uint64_t OpOperands::next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 27);
}

float OpOperands::unit() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1; }

void* OpOperands::room(int64_t bytes) {
  const int64_t padded = Arena::padded(bytes);
  if (padded > std::ssize(left_)) {
    const Buffer& block = buffers_.emplace_back(cx_.allocate(std::max(padded, kBlockBytes)));
    left_ = {static_cast<uint8_t*>(block.data()), static_cast<size_t>(block.size_bytes())};
  }
  void* const data = left_.data();
  left_ = left_.subspan(static_cast<size_t>(padded));
  return data;
}

template <typename T>
T* OpOperands::put(const std::vector<T>& host) {
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
  void* const to = room(bytes);
  if (cx_.on_gpu()) {
    cuda::copy(to, host.data(), bytes);
  } else {
    std::memcpy(to, host.data(), host.size() * sizeof(T));
  }
  return static_cast<T*>(to);
}

// On a GPU float32 values are bf16 ones with random bits behind them.
void OpOperands::fill(void* data, int64_t bytes, DType dtype) {
  using Kind = RandomBytes::Kind;
  if (cx_.on_gpu() && made_ == Made::kCold)
    return cuda::random_fill(data, bytes, {.kind = Kind::kNormalBF16, .rms = 0.5, .seed = next()});
  const int64_t n = bytes / dtype_bytes(dtype);
  const auto write = [&]<typename T>(T (*from_bf16)(uint16_t)) {
    std::vector<T> values(static_cast<size_t>(n));
    for (T& value : values) value = from_bf16(bf16_from_float(unit()));
    if (cx_.on_gpu()) return cuda::copy(data, values.data(), bytes);
    std::memcpy(data, values.data(), static_cast<size_t>(bytes));
  };
  if (dtype == DType::kF32) return write(+[](uint16_t bits) { return bf16_to_float(bits); });
  if (dtype == DType::kBF16) return write(+[](uint16_t bits) { return bits; });
  CHECK(dtype == DType::kF8E4M3);
  write(+[](uint16_t bits) { return e4m3_from_float(bf16_to_float(bits)); });
}

Tensor OpOperands::floats(int64_t rows, int64_t cols) {
  Tensor t = make_tensor(nullptr, DType::kF32, {rows, cols});
  t.data = room(t.size_bytes());
  fill(t.data, t.size_bytes(), t.dtype);
  return t;
}

Tensor OpOperands::stored(int64_t rows, int64_t cols) {
  Tensor t = make_tensor(nullptr, stored_dtype(), {rows, cols});
  t.data = room(t.size_bytes());
  fill(t.data, t.size_bytes(), t.dtype);
  return t;
}

Tensor OpOperands::no_numbers(DType dtype, int64_t rows, int64_t cols) {
  constexpr uint8_t kNaN = 0xff;  // of float32 and bf16
  Tensor t = make_tensor(nullptr, dtype, {rows, cols});
  t.data = room(t.size_bytes());
  if (cx_.on_gpu())
    cuda::fill(t.data, kNaN, t.size_bytes());
  else
    std::memset(t.data, kNaN, static_cast<size_t>(t.size_bytes()));
  return t;
}

Norm OpOperands::norm(int64_t hidden) {
  std::vector<uint16_t> weight(static_cast<size_t>(hidden));
  for (uint16_t& w : weight) w = bf16_from_float(1 + unit() / 4);
  return {put(weight), 1e-5f};
}

const uint16_t* OpOperands::vector(int64_t n) {
  std::vector<uint16_t> values(static_cast<size_t>(n));
  for (uint16_t& v : values) v = bf16_from_float(unit() / 8);
  return put(values);
}

const int32_t* OpOperands::ids(int64_t n, int64_t below) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (int32_t& v : values) v = static_cast<int32_t>(next() % static_cast<uint64_t>(below));
  return put(values);
}

// One of them, made row by row on the host and then laid out.
void OpOperands::put_alike(Weight& w) {
  Weight in_rows = w;
  in_rows.layout = Layout::kRows;
  const int64_t rows = w.experts * w.rows;
  std::vector<uint8_t> codes(static_cast<size_t>(rows * in_rows.row_code_bytes())),
      scales(static_cast<size_t>(rows * in_rows.row_scale_bytes()));
  fill_codes(w.format, codes.data(), std::ssize(codes));
  fill_scales(w.format, scales.data(), std::ssize(scales));
  if (w.layout != Layout::kRows) {
    std::vector<uint8_t> to(static_cast<size_t>(rows * w.row_code_bytes())),
        to_scales(static_cast<size_t>(rows * w.row_scale_bytes()));
    pack_rows(w.format, w.layout, rows, w.cols, {codes.data(), scales.data()},
              {to.data(), to_scales.data()});
    codes = std::move(to), scales = std::move(to_scales);
  }
  w.codes = put(codes);
  if (!scales.empty()) w.scales = put(scales);
  if (!format_row(w.format).row_scales) return;
  std::vector<float> row_scales(static_cast<size_t>(rows));
  for (float& scale : row_scales) scale = 0x1p-7f * (1.5f + unit() / 2);
  w.row_scales = put(row_scales);
}

std::vector<ops::Site> OpOperands::weights(Weight like) {
  like.bias = vector(like.experts * like.rows);
  if (made_ == Made::kAlike) {
    put_alike(like);
    std::vector<ops::Site> one(1);
    one[0].weight = like;
    find_row_exponents(one[0]);
    return one;
  }
  const int64_t rows = like.experts * like.rows;
  const int64_t code_bytes = rows * like.row_code_bytes();
  const int64_t scale_bytes = rows * like.row_scale_bytes();
  const int64_t count = std::max<int64_t>(1, kColdBytes / code_bytes);
  auto* const codes = static_cast<uint8_t*>(room(count * code_bytes));
  auto* const scales =
      scale_bytes == 0 ? nullptr : static_cast<uint8_t*>(room(count * scale_bytes));
  const float* const row_scales = format_row(like.format).row_scales
                                      ? put(std::vector<float>(static_cast<size_t>(rows), 0x1p-7f))
                                      : nullptr;
  std::vector<ops::Site> all(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    all[i].weight = like;
    all[i].weight.codes = codes + i * code_bytes;
    if (scales != nullptr) all[i].weight.scales = scales + i * scale_bytes;
    all[i].weight.row_scales = row_scales;
  }
  if (cx_.on_gpu()) {
    fill_on_gpu(like, codes, count * code_bytes, scales, count * scale_bytes);
    for (ops::Site& site : all) find_row_exponents(site);
    return all;
  }
  // The others are copies of the first.
  fill_codes(like.format, codes, code_bytes);
  fill_scales(like.format, scales, scale_bytes);
  for (int64_t i = 1; i < count; ++i) {
    std::memcpy(codes + i * code_bytes, codes, static_cast<size_t>(code_bytes));
    if (scales != nullptr)
      std::memcpy(scales + i * scale_bytes, scales, static_cast<size_t>(scale_bytes));
  }
  return all;
}

// bf16 and f16: exponents around 2^-6; E4M3: no NaN.
void OpOperands::fill_codes(Format format, uint8_t* codes, int64_t bytes) {
  const bool is_e4m3 =
      format == Format::kMxfp8 || format == Format::kFp8Row || format == Format::kFp8Block;
  const uint64_t keep = format == Format::kBF16  ? 0x80ff80ff80ff80ffu
                        : format == Format::kF16 ? 0x83ff83ff83ff83ffu
                        : is_e4m3                ? 0xbfbfbfbfbfbfbfbfu
                                                 : ~uint64_t{0};
  const uint64_t set = format == Format::kBF16  ? 0x3c003c003c003c00u
                       : format == Format::kF16 ? 0x2400240024002400u
                                                : 0;
  for (int64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (next() & keep) | set;
    std::memcpy(codes + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
  }
}

// Of about 2^-8.
void OpOperands::fill_scales(Format format, uint8_t* scales, int64_t bytes) {
  const Int4Group group{.scale = bf16_from_float(0x1p-8f), .zero = 8, .is_f16 = 0};
  const float scale = 0x1p-8f;
  for (int64_t i = 0; i < bytes; i += format_row(format).scale_bytes) {
    if (format == Format::kFp8Block)
      std::memcpy(scales + i, &scale, sizeof(scale));
    else if (format == Format::kInt4G32 || format == Format::kInt4G128)
      std::memcpy(scales + i, &group, sizeof(group));
    else if (format == Format::kNvfp4)
      scales[i] = static_cast<uint8_t>(0x30 + next() % 8);
    else
      scales[i] = static_cast<uint8_t>(118 + next() % 3);
  }
}

void OpOperands::fill_on_gpu(const Weight& like, uint8_t* codes, int64_t code_bytes,
                             uint8_t* scales, int64_t scale_bytes) {
  using Kind = RandomBytes::Kind;
  const bool is_nvfp4 = like.format == Format::kNvfp4, is_block = like.format == Format::kFp8Block,
             is_mxfp8 = like.format == Format::kMxfp8;
  const bool has_tiles = like.layout == Layout::kTiles16x64;
  const Kind kind = like.format == Format::kBF16                             ? Kind::kNormalBF16
                    : is_block && has_tiles                                  ? Kind::kFp8Tiles
                    : is_mxfp8 && has_tiles                                  ? Kind::kMxfp8Tiles
                    : is_block || is_mxfp8 || like.format == Format::kFp8Row ? Kind::kE4m3Codes
                    : has_tiles ? (is_nvfp4 ? Kind::kNvfp4Tiles : Kind::kTiles)
                                : Kind::kUniform;
  constexpr double kRms = 0x1p-7;
  cuda::random_fill(codes, code_bytes, {.kind = kind, .rms = kRms, .seed = next()});
  if (scales == nullptr) return;
  const Kind of_scales = is_nvfp4 ? Kind::kE4m3Scales : is_block ? Kind::kFloats : Kind::kScales;
  cuda::random_fill(scales, scale_bytes, {.kind = of_scales, .rms = kRms, .seed = next()});
}

// Those of random ones are never too far apart.
void OpOperands::find_row_exponents(ops::Site& site) {
  constexpr ops::FindRowExponentsFn* kFind = NIBBLE_CUDA_KERNEL(ops::gpu::find_row_exponents);
  const Weight& w = site.weight;
  if (!cx_.on_gpu() || w.layout != Layout::kTiles16x64 || w.format != Format::kMxfp4 ||
      cx_.kernels.activations != ops::ActFormat::kFp8)
    return;
  CHECK(kFind != nullptr);
  auto* const least = static_cast<uint8_t*>(room(w.experts * w.rows));
  CHECK(kFind(cx_, w, least).rows == 0);
  site.row_exponents = least;
}

std::vector<OpOperands::Choice> OpOperands::choices(int64_t tokens, int64_t experts, int64_t top_k,
                                                    int64_t shared) {
  std::vector<Choice> all;
  const auto num = static_cast<size_t>(tokens * top_k), num_experts = static_cast<size_t>(experts);
  for (int i = 0; i < kNumChoices; ++i) {
    std::vector<int32_t> ids(num), counts(num_experts), offsets(num_experts + 1), slot(num),
        token(num), every(num_experts);
    for (size_t at = 0; at < num; at += static_cast<size_t>(top_k)) {
      std::iota(every.begin(), every.end(), 0);
      for (int64_t k = 0; k < top_k - shared; ++k) {
        std::swap(every[k], every[k + next() % (experts - shared - k)]);
        ids[at + k] = every[k];
      }
      for (int64_t i = 1; i <= shared; ++i) ids[at + top_k - i] = static_cast<int32_t>(experts - i);
    }
    std::vector<float> p(num);
    for (float& weight : p) weight = (1 + unit() / 2) / static_cast<float>(top_k);
    Routing host{static_cast<int32_t>(tokens),
                 static_cast<int32_t>(experts),
                 static_cast<int32_t>(top_k),
                 ids.data(),
                 p.data(),
                 counts.data(),
                 offsets.data(),
                 slot.data(),
                 token.data()};
    sort_by_expert(host);
    const auto unused = std::count(counts.begin(), counts.end(), 0);
    host.ids = put(ids), host.p = put(p), host.counts = put(counts);
    host.offsets = put(offsets), host.slot = put(slot), host.token = put(token);
    all.push_back({host, experts - unused});
  }
  return all;
}

OpOperands::Sequences OpOperands::sequences(int64_t tokens, const OpSequences& how,
                                            int64_t kv_heads, int64_t head_dim) {
  const int64_t count = count_sequences(tokens, how.span), each = tokens / count;
  const int64_t context = how.context;
  const int64_t pages = (context + each + kPage - 1) / kPage;
  std::vector<int32_t> table(static_cast<size_t>(count * pages)), positions, rows;
  std::iota(table.begin(), table.end(), 0);
  std::vector<Span> spans;
  for (int64_t s = 0; s < count; ++s)
    spans.push_back({static_cast<int32_t>(s * each), static_cast<int32_t>(each),
                     static_cast<int32_t>(context), static_cast<int32_t>(s)});
  for (int64_t t = 0; t < tokens; ++t) {
    positions.push_back(static_cast<int32_t>(context + t % each));
    rows.push_back(static_cast<int32_t>(t));
  }
  const auto side = [&] {
    Tensor t = make_tensor(nullptr, how.kv, {count * pages, kv_heads, kPage, head_dim});
    t.data = room(t.size_bytes());
    fill(t.data, t.size_bytes(), t.dtype);
    return t;
  };
  const Tensor k = side(), v = side();
  return {.kv = {k, v, put(table), static_cast<int32_t>(pages), kPage},
          .step = {.num_tokens = static_cast<int32_t>(tokens),
                   .num_spans = static_cast<int32_t>(count),
                   .num_out = static_cast<int32_t>(tokens),
                   .max_context = static_cast<int32_t>(context + each),
                   .positions = put(positions),
                   .spans = put(spans),
                   .out_rows = put(rows)},
          .count = count};
}

RecurrentLayer OpOperands::recurrent(const StateShape& of, int64_t count) {
  Tensor state = make_tensor(nullptr, DType::kF32, {2 * count, of.heads, of.rows, of.columns});
  Tensor conv = make_tensor(nullptr, DType::kF32, {2 * count, of.taps - 1, of.channels});
  std::vector<int32_t> from(static_cast<size_t>(count)), to(static_cast<size_t>(count));
  std::iota(from.begin(), from.end(), 0);
  std::iota(to.begin(), to.end(), static_cast<int32_t>(count));
  state.data = floats(2 * count * of.heads, of.rows * of.columns).data;
  conv.data = floats(2 * count, (of.taps - 1) * of.channels).data;
  return {state, conv, put(from), put(to)};
}
RecurrentLayer OpOperands::recurrent(const ops::DeltaRuleDesc& d, int64_t count) {
  return recurrent(StateShape{d.value_heads, d.key_dim, d.value_dim, d.taps, d.channels()}, count);
}
RecurrentLayer OpOperands::recurrent(const ops::Mamba2Desc& d, int64_t count) {
  return recurrent(StateShape{d.heads, d.state_dim, d.head_dim, d.taps, d.channels()}, count);
}

const float* OpOperands::constant(int64_t n, float value) {
  return put(std::vector<float>(static_cast<size_t>(n), value));
}

ops::DeltaRuleWeights OpOperands::delta_weights(const ops::DeltaRuleDesc& d) {
  return {.conv = constant(d.channels() * d.taps, 0.5f),
          .a_log = constant(d.value_heads, 0),
          .dt_bias = constant(d.value_heads, -2),
          .norm = constant(d.value_dim, 1),
          .eps = 1e-6f};
}

ops::Mamba2Weights OpOperands::mamba_weights(const ops::Mamba2Desc& d) {
  return {.conv = constant(d.channels() * d.taps, 0.5f),
          .conv_bias = constant(d.channels(), 0.25f),
          .a_log = constant(d.heads, 0),
          .d = constant(d.heads, 1),
          .dt_bias = constant(d.heads, -2),
          .norm = constant(d.inner(), 1),
          .eps = 1e-5f};
}

}  // namespace nibble::cli
