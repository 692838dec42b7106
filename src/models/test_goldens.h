// For tests: the goldens of tests/goldens/families, loaded and compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "io/bundle_for_test.h"
#include "io/checkpoint.h"
#include "models/test_runner.h"

namespace nibble {

inline const std::filesystem::path kGoldens =
    std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/goldens/families";

// One tensor of expected/model.safetensors, of a case or of any directory.
template <typename T>
std::vector<T> expected(const std::filesystem::path& name, const std::string& tensor) {
  const auto checkpoint = open_checkpoint(kGoldens / name / "expected");
  const TensorInfo* info = checkpoint->find(tensor);
  EXPECT_NE(info, nullptr) << tensor;
  if (info == nullptr) return {};
  std::vector<T> values(info->bytes / sizeof(T));
  const ReadJob job = ReadJob::whole(*info, values.data());
  checkpoint->read({&job, 1});
  return values;
}

inline std::vector<int32_t> tokens_of(const std::filesystem::path& name) {
  std::vector<int32_t> tokens;
  for (const int64_t token : expected<int64_t>(name, "tokens"))
    tokens.push_back(static_cast<int32_t>(token));
  return tokens;
}

// An instruction set that this machine runs, or none: the twins.
using Kernels = std::optional<cpu::Isa>;
inline constexpr Kernels kTwins = std::nullopt;
inline std::vector<Kernels> kernels_here() {
  std::vector<Kernels> here = {kTwins};
  for (cpu::Isa isa : {cpu::Isa::kScalar, cpu::Isa::kNeon, cpu::Isa::kAvx2, cpu::Isa::kAvx512})
    if (cpu::supports(cpu::detect_isa(), isa)) here.push_back(isa);
  return here;
}
inline const char* kernels_name(Kernels kernels) {
  return kernels ? cpu::isa_name(*kernels) : "twins";
}

// A model loaded for one instruction set, with float32 activations, on two workers.
struct Loaded {
  Loaded(const std::filesystem::path& directory, Kernels kernels, const LoadOptions& options = {}) {
    cx.pool = &pool;
    if (kernels)
      cx.kernels.isa = *kernels;
    else
      run_twins(cx.kernels);
    model = load_model(cx, directory, options);
    model->reserve(cx, {128, 128});
  }
  cpu::ThreadPool pool{2};
  ops::Ctx cx;
  std::unique_ptr<Model> model;
};

using Logits = std::vector<std::vector<float>>;  // [T][V]

inline double log_sum(const float* logits, size_t vocab) {
  const double most = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (size_t n = 0; n < vocab; ++n) sum += std::exp(logits[n] - most);
  return most + std::log(sum);
}

// The most that log-probabilities differ by.
inline double worst(const Logits& got, const std::vector<float>& want) {
  double off = 0;
  for (size_t t = 0; t < got.size(); ++t) {
    const size_t vocab = got[t].size();
    const float* row = want.data() + t * vocab;
    const double got_sum = log_sum(got[t].data(), vocab), want_sum = log_sum(row, vocab);
    for (size_t n = 0; n < vocab; ++n)
      off = std::max(off, std::fabs((got[t][n] - got_sum) - (row[n] - want_sum)));
  }
  return off;
}

// A copy of a golden's checkpoint, each tensor of which `change` sees.
template <typename Change>
void write_changed(const std::filesystem::path& name, const std::filesystem::path& to,
                   const Change& change) {
  std::filesystem::copy_file(kGoldens / name / "config.json", to / "config.json");
  const auto plain = open_checkpoint(kGoldens / name);
  test::Bundle bundle;
  for (TensorInfo t : plain->tensors()) {
    std::vector<std::byte> bytes(t.bytes);
    const ReadJob job = ReadJob::whole(t, bytes.data());
    plain->read({&job, 1});
    change(t, bytes);
    bundle.add(t.name, t.dtype, t.shape, std::move(bytes));
  }
  bundle.write(to / "model.safetensors");
}

// A change: values of BF16 in float32.
inline void widen(TensorInfo& t, std::vector<std::byte>& bytes) {
  if (t.dtype != DType::kBF16) return;
  t.dtype = DType::kF32;
  std::vector<float> wide(bytes.size() / 2);
  for (size_t i = 0; i < wide.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, &bytes[2 * i], 2);
    wide[i] = bf16_to_float(bits);
  }
  const auto all = std::as_bytes(std::span(wide));
  bytes.assign(all.begin(), all.end());
}

}  // namespace nibble
