// The CPU kernels of an op's table, where the op is one product: a way to multiply and an
// instruction set each, in order of preference.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/cpu_matmul/product.h"
#include "ops/kernel_table.h"
#include "ops/refuse.h"

namespace nibble::ops {

struct MatrixShape {
  int64_t rows, cols;
};

// What refuses a matrix by its format and shape, as a table wants it.
template <auto kMatrix, auto kRefuse>
inline constexpr auto refuse_matrix = [](const auto& d, const KernelOptions& o) {
  const MatrixShape matrix = kMatrix(d);
  return kRefuse(d.format, matrix.rows, matrix.cols, o);
};

// A table from its parts, in their order.
template <typename Row, size_t... kCounts>
constexpr auto joined(const std::array<Row, kCounts>&... parts) {
  std::array<Row, (kCounts + ...)> all{};
  size_t at = 0;
  const auto append = [&](const auto& part) {
    for (const Row& row : part) all[at++] = row;
  };
  (append(parts), ...);
  return all;
}

// Row: the op's Kernel. Cpu: its kernels, of <Product, Isa>. kMatrix: the MatrixShape of a Desc.
template <typename Row, template <typename, cpu::Isa> typename Cpu, auto kMatrix>
class CpuRows {
 public:
  static constexpr auto all() {
    return joined(in_tiles(), in_int8(), in_bf16_panels(), in_bf16_rows(), in_float_panels(),
                  in_float(), any());
  }

 private:
  static constexpr std::array<Row, 2> in_tiles() {
    return {int8_row<cpu::Isa::kAmx>("amx_int8row"), bf16<cpu::Isa::kAmx>("amx_bf16_panels")};
  }
  static constexpr std::array<Row, 5> in_int8() {
    return {int8_row<cpu::Isa::kAvx512Vnni>("avx512_vnni_int8row"),
            int8<cpu::Isa::kAvx512Vnni>("avx512_vnni_int8"),
            int8<cpu::Isa::kAvxVnni>("avx_vnni_int8"), int8<cpu::Isa::kAvx2>("avx2_int8"),
            int8<cpu::Isa::kNeonDot>("neon_dot_int8")};
  }
  static constexpr std::array<Row, 1> in_bf16_panels() {
    return {bf16<cpu::Isa::kAvx512Bf16>("avx512_bf16_panels")};
  }
  static constexpr std::array<Row, 2> in_bf16_rows() {
    return {bf16_rows<cpu::Isa::kAmx>("amx_bf16"), bf16_rows<cpu::Isa::kAvx512Bf16>("avx512_bf16")};
  }
  static constexpr std::array<Row, 3> in_float_panels() {
    return {float_panels<cpu::Isa::kAvx512>("avx512_float_panels"),
            float_panels<cpu::Isa::kAvx2>("avx2_float_panels"),
            float_panels<cpu::Isa::kNeon>("neon_float_panels")};
  }
  static constexpr std::array<Row, 3> in_float() {
    return {floats<cpu::Isa::kAvx512>("avx512_float"), floats<cpu::Isa::kAvx2>("avx2_float"),
            floats<cpu::Isa::kNeon>("neon_float")};
  }

  // The last rows: every format and shape. What has no way of its own is decoded block by block.
  static constexpr std::array<Row, 4> any() {
    return {any_row<cpu::Isa::kAvx512>("avx512_any"), any_row<cpu::Isa::kAvx2>("avx2_any"),
            any_row<cpu::Isa::kNeon>("neon_any"), any_row<cpu::Isa::kScalar>("plain_any")};
  }

  template <cpu::Isa kIsa>
  static constexpr Row any_row(const char* name) {
    return {name, [](const auto&, const KernelOptions& o) { return refuse_isa(kIsa, o); },
            Cpu<FloatProduct, kIsa>::run};
  }
  template <cpu::Isa kIsa>
  static constexpr Row floats(const char* name) {
    return {name,
            [](const auto& d, const KernelOptions& o) { return refuse_blocked<kIsa>(d.format, o); },
            Cpu<FloatProduct, kIsa>::run};
  }
  template <cpu::Isa kIsa>
  static constexpr Row float_panels(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_float_panels<kIsa>>,
            Cpu<FloatPanelProduct, kIsa>::run, Layout::kPanels16};
  }
  template <cpu::Isa kIsa>
  static constexpr Row bf16(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_bf16<kIsa>>, Cpu<Bf16Product, kIsa>::run,
            Layout::kPanels16};
  }
  template <cpu::Isa kIsa>
  static constexpr Row bf16_rows(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_bf16_rows<kIsa>>, Cpu<Bf16RowProduct, kIsa>::run};
  }
  template <cpu::Isa kIsa>
  static constexpr Row int8(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_int8<kIsa>>, Cpu<Int8Product, kIsa>::run,
            Layout::kPanels16};
  }
  template <cpu::Isa kIsa>
  static constexpr Row int8_row(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_int8_row<kIsa>>, Cpu<Int8RowProduct, kIsa>::run,
            Layout::kPanels16};
  }
};

}  // namespace nibble::ops
