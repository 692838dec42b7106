// Lines of an op's table for CPU kernels, where the op is one product: a way to multiply and an
// instruction set each.
#pragma once

#include <cstdint>

#include "ops/kernel_table.h"
#include "ops/linear/product.h"
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

// Row: the op's Kernel. Cpu: its kernels, of <Product, Isa>. kMatrix: the MatrixShape of a Desc.
template <typename Row, template <typename, cpu::Isa> typename Cpu, auto kMatrix>
struct CpuRows {
  template <cpu::Isa kIsa>
  static constexpr Row floats(const char* name) {
    return {name,
            [](const auto& d, const KernelOptions& o) { return refuse_blocked<kIsa>(d.format, o); },
            Cpu<FloatProduct, kIsa>::run};
  }
  template <cpu::Isa kIsa>
  static constexpr Row fp8(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_fp8<kIsa>>, Cpu<Fp8Product, kIsa>::run,
            Layout::kPanels16};
  }
  template <cpu::Isa kIsa>
  static constexpr Row bf16(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_bf16<kIsa>>, Cpu<Bf16Product, kIsa>::run,
            Layout::kPanels16};
  }
  static constexpr Row bf16_rows(const char* name) {
    return {name, refuse_matrix<kMatrix, refuse_bf16_rows>,
            Cpu<Bf16RowProduct, cpu::Isa::kAmx>::run};
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
