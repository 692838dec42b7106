// Dummy weights: 64-bit word i of a tensor is a hash of (seed, tensor name, i), so any range can be
// made by any thread.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "formats/mxfp4.h"
#include "io/checkpoint.h"

namespace nibble {
namespace {

// splitmix64's output function (Steele, Lea, Flood 2014).
constexpr uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;

uint64_t stream_of(uint64_t seed, std::string_view name) {
  uint64_t hash = mix(seed + kStep);
  for (const char c : name) hash = mix(hash ^ static_cast<unsigned char>(c)) + kStep;
  return hash;
}

// Makes bytes of one tensor, eight at a time.
class Filler {
 public:
  enum class Kind { kConstant, kBytes, kSmallE4m3, kScales, kNormalBF16, kNormalF32 };

  static Filler constant(uint64_t word) {
    Filler f(Kind::kConstant, 0);
    f.word_ = word;
    return f;
  }
  static Filler bytes(uint64_t stream) { return Filler(Kind::kBytes, stream); }
  // E4M3 of magnitudes below 2: none is NaN.
  static Filler small_e4m3(uint64_t stream) { return Filler(Kind::kSmallE4m3, stream); }
  static Filler float_constant(double value) {
    const uint64_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    return constant(bits << 32 | bits);
  }
  static Filler bf16_constant(double value) {
    const uint64_t bits = bf16_from_float(static_cast<float>(value));
    return constant(bits << 48 | bits << 32 | bits << 16 | bits);
  }

  // E8M0 bytes s or s + 1, mixed so that the mean square of 2^(byte - 127) is rms^2.
  static Filler scales(uint64_t stream, double rms) {
    Filler f(Kind::kScales, stream);
    const int exponent = static_cast<int>(std::floor(std::log2(rms)));
    const double low = std::exp2(2 * exponent);
    f.scale_ = static_cast<uint8_t>(std::clamp(exponent + 127, 0, 253));
    f.threshold_ = static_cast<unsigned>(std::lround(256 * (rms * rms - low) / (3 * low)));
    return f;
  }

  // Sums of four random bytes: 1,021 values, near enough to a normal distribution (cut at 3.45
  // deviations) and one table look-up each.
  static Filler normal(uint64_t stream, Format format, double deviation) {
    Filler f(format == Format::kBF16 ? Kind::kNormalBF16 : Kind::kNormalF32, stream);
    const double unit = deviation / std::sqrt(4 * 65535.0 / 12);
    for (int sum = 0; sum <= 1020; ++sum) {
      const auto value = static_cast<float>((sum - 510) * unit);
      f.table_[static_cast<size_t>(sum)] =
          format == Format::kBF16 ? bf16_from_float(value) : std::bit_cast<uint32_t>(value);
    }
    return f;
  }

  // Bytes [begin, begin + to.size()) of the tensor.
  void fill(int64_t begin, std::span<std::byte> to) const {
    switch (kind_) {
      case Kind::kConstant:
        return fill_words(begin, to, [&](uint64_t) { return word_; });
      case Kind::kBytes:
        return fill_words(begin, to, [&](uint64_t i) { return random(i); });
      case Kind::kSmallE4m3:
        return fill_words(begin, to,
                          [&](uint64_t i) { return random(i) & ~uint64_t{0x4040404040404040u}; });
      case Kind::kScales:
        return fill_words(begin, to, [&](uint64_t i) { return eight_scales(i); });
      case Kind::kNormalBF16:
        return fill_words(begin, to, [&](uint64_t i) {
          const uint64_t low = sums(2 * i), high = sums(2 * i + 1);
          return uint64_t{table_[low & 1023]} | uint64_t{table_[low >> 32]} << 16 |
                 uint64_t{table_[high & 1023]} << 32 | uint64_t{table_[high >> 32]} << 48;
        });
      case Kind::kNormalF32:
        return fill_words(begin, to, [&](uint64_t i) {
          const uint64_t s = sums(i);
          return uint64_t{table_[s & 1023]} | uint64_t{table_[s >> 32]} << 32;
        });
    }
  }

 private:
  Filler(Kind kind, uint64_t stream) : kind_(kind), stream_(stream) {}

  template <typename Make>
  static void fill_words(int64_t begin, std::span<std::byte> to, const Make& make) {
    const int64_t end = begin + std::ssize(to);
    std::byte* out = to.data();
    const auto part = [&](int64_t from, int64_t until) {  // of one word
      const uint64_t word = make(static_cast<uint64_t>(from / 8));
      std::memcpy(out, reinterpret_cast<const std::byte*>(&word) + from % 8,
                  static_cast<size_t>(until - from));
      out += until - from;
    };
    int64_t at = begin;
    if (at % 8 != 0) {
      const int64_t until = std::min(end, at - at % 8 + 8);
      part(at, until);
      at = until;
    }
    for (; at + 8 <= end; at += 8, out += 8) {
      const uint64_t word = make(static_cast<uint64_t>(at) / 8);
      std::memcpy(out, &word, 8);
    }
    if (at < end) part(at, end);
  }

  uint64_t random(uint64_t i) const { return mix(stream_ + i * kStep); }

  uint64_t eight_scales(uint64_t i) const {
    const uint64_t r = random(i);
    uint64_t word = 0;
    for (int b = 0; b < 64; b += 8)
      word |= uint64_t{scale_ + unsigned{((r >> b) & 255) < threshold_}} << b;
    return word;
  }

  // Two sums of four bytes, each up to 1020, in the lower and the upper half.
  uint64_t sums(uint64_t i) const {
    const uint64_t r = random(i);
    const uint64_t pairs = (r & 0x00ff00ff00ff00ffu) + ((r >> 8) & 0x00ff00ff00ff00ffu);
    return (pairs & 0x0000ffff0000ffffu) + ((pairs >> 16) & 0x0000ffff0000ffffu);
  }

  Kind kind_;
  uint64_t stream_;
  uint64_t word_ = 0;
  uint8_t scale_ = 0;
  unsigned threshold_ = 0;
  std::array<uint32_t, 1024> table_ = {};  // bits of the value of each sum
};

class DummyCheckpoint : public Checkpoint {
 public:
  DummyCheckpoint(const std::vector<WeightSpec>& wanted, uint64_t seed)
      : origin_("dummy weights, seed " + std::to_string(seed)) {
    std::vector<std::pair<TensorInfo, Filler>> made;
    for (const WeightSpec& spec : wanted) add(spec, seed, made);
    std::sort(made.begin(), made.end(),
              [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
    for (auto& [tensor, filler] : made) {
      tensor.file = static_cast<int>(tensors_.size());  // which filler makes it
      tensors_.push_back(std::move(tensor));
      fillers_.push_back(filler);
    }
  }

  const std::string& origin() const override { return origin_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }

  RangeReader make_reader() const override {
    return [this](const ReadJob& job) {
      fillers_[static_cast<size_t>(job.tensor->file)].fill(
          job.begin, {job.to, static_cast<size_t>(job.bytes)});
    };
  }
  int num_readers() const override {
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }

 private:
  static TensorInfo tensor_of(std::string name, DType dtype, std::vector<int64_t> shape) {
    int64_t bytes = dtype_bytes(dtype);
    for (const int64_t n : shape) bytes *= n;
    return {std::move(name), dtype, std::move(shape), bytes, 0, 0};
  }

  static void add(const WeightSpec& spec, uint64_t seed,
                  std::vector<std::pair<TensorInfo, Filler>>& made) {
    const double deviation = dummy_deviation(spec);
    if (spec.format == Format::kMxfp4) {
      CHECK(!spec.shape.empty() && spec.shape.back() % kMxfp4BlockElems == 0);
      CHECK(spec.fill != Fill::kOne);
      std::vector<int64_t> shape = spec.shape;
      shape.back() /= kMxfp4BlockElems;
      const std::string blocks = spec.name + "_blocks", scales = spec.name + "_scales";
      const double rms = dummy_scale_rms(spec);
      made.emplace_back(
          tensor_of(scales, DType::kU8, shape),
          deviation == 0 ? Filler::constant(0) : Filler::scales(stream_of(seed, scales), rms));
      shape.push_back(kMxfp4BlockElems / 2);
      made.emplace_back(
          tensor_of(blocks, DType::kU8, shape),
          deviation == 0 ? Filler::constant(0) : Filler::bytes(stream_of(seed, blocks)));
      return;
    }
    if (spec.format != Format::kF32 && spec.format != Format::kBF16)
      return add_quantized(spec, seed, made);
    const bool wide = spec.format == Format::kF32;
    const uint64_t one = wide ? 0x3f8000003f800000u : 0x3f803f803f803f80u;
    made.emplace_back(tensor_of(spec.name, wide ? DType::kF32 : DType::kBF16, spec.shape),
                      deviation == 0
                          ? Filler::constant(spec.fill == Fill::kOne ? one : 0)
                          : Filler::normal(stream_of(seed, spec.name), spec.format, deviation));
  }

  // As list_weights() reads them: codes under random bits, scales all alike.
  static void add_quantized(const WeightSpec& spec, uint64_t seed,
                            std::vector<std::pair<TensorInfo, Filler>>& made) {
    constexpr std::string_view kWeight = ".weight";
    CHECK(spec.shape.size() == 2 && spec.name.ends_with(kWeight));
    const std::string base = spec.name.substr(0, spec.name.size() - kWeight.size());
    const int64_t n = spec.shape[0], k = spec.shape[1];
    const double deviation = dummy_deviation(spec);
    const auto tensor = [&](const char* part, DType dtype, std::vector<int64_t> shape,
                            const Filler& filler) {
      made.emplace_back(tensor_of(base + "." + part, dtype, std::move(shape)), filler);
    };
    const uint64_t stream = stream_of(seed, spec.name);
    const Filler codes = Filler::bytes(stream), e4m3 = Filler::small_e4m3(stream);
    const double unit = deviation / rms_of_codes(spec.format);
    switch (spec.format) {
      case Format::kNvfp4:
        tensor("weight", DType::kU8, {n, k / 2}, codes);
        tensor("weight_scale", DType::kF8E4M3, {n, k / 16}, Filler::constant(kE4m3Ones));
        return tensor("weight_scale_2", DType::kF32, {1}, Filler::float_constant(unit));
      case Format::kFp8Row:
        tensor("weight", DType::kF8E4M3, {n, k}, e4m3);
        return tensor("weight_scale", DType::kF32, {n, 1}, Filler::float_constant(unit));
      case Format::kFp8Block:
        tensor("weight", DType::kF8E4M3, {n, k}, e4m3);
        return tensor("weight_scale_inv", DType::kF32, {(n + 127) / 128, (k + 127) / 128},
                      Filler::float_constant(unit));
      case Format::kMxfp8:
        tensor("weight", DType::kF8E4M3, {n, k}, e4m3);
        return tensor("weight_scale", DType::kU8, {n, k / 32},
                      Filler::scales(stream_of(seed, base + ".weight_scale"), unit));
      case Format::kInt4G32:
      case Format::kInt4G128:
        tensor("weight_packed", DType::kI32, {n, k / 8}, codes);
        return tensor("weight_scale", DType::kBF16, {n, k / format_row(spec.format).block_elems},
                      Filler::bf16_constant(unit));
      default:
        CHECK(false);  // no model says F16 before it is loaded
    }
  }
  static constexpr uint64_t kE4m3Ones = 0x3838383838383838u;

  // Root mean square of what random bits are.
  static double rms_of_codes(Format format) {
    if (format == Format::kNvfp4) return std::sqrt(68.5 / 8);  // as of MXFP4
    if (format == Format::kInt4G32 || format == Format::kInt4G128) return std::sqrt(21.5);
    double sum = 0;
    for (int code = 0; code < 64; ++code) sum += double{kE4m3[code]} * kE4m3[code];
    return std::sqrt(sum / 64);
  }

  std::string origin_;
  std::vector<TensorInfo> tensors_;
  std::vector<Filler> fillers_;
};

}  // namespace

double dummy_deviation(const WeightSpec& spec) {
  const double k =
      static_cast<double>(std::max<int64_t>(spec.shape.empty() ? 1 : spec.shape.back(), 1));
  switch (spec.fill) {
    case Fill::kZero:
    case Fill::kOne:
      return 0;
    case Fill::kNormal:
      return 1;
    case Fill::kScaledNormal:
      return 1 / std::sqrt(k);
    case Fill::kRouter:
      return 2 / std::sqrt(k);
    case Fill::kResidual:
      return 0.125 / std::sqrt(k);
  }
  return 0;
}

double dummy_scale_rms(const WeightSpec& spec) {
  return dummy_deviation(spec) / std::sqrt(68.5 / 8);
}

std::unique_ptr<Checkpoint> dummy_checkpoint(const std::vector<WeightSpec>& wanted, uint64_t seed) {
  return std::make_unique<DummyCheckpoint>(wanted, seed);
}

}  // namespace nibble
