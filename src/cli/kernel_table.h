// What the user says of kernels: --kernel, and kernel tables in files, which say which kernel of
// each op was the fastest for steps of each size on one machine. `nibble bench ops --tune FILE`
// writes one, --kernel-table FILE reads it. Lines of words:
//
//   nibble-kernel-table 1
//   device NVIDIA H200
//   activations bf16
//   model openai/gpt-oss-120b
//   moe_up mxfp4 64 cuda_w4a16_decode        op, format of its matrix or -, most tokens, kernel
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/kernel_table.h"

namespace nibble::cli {

struct KernelTable {
  std::string device;       // as the driver or the CPU calls itself
  std::string activations;  // ops::act_format_name(), as timed
  std::string model;        // whose shapes were timed
  std::vector<ops::TunedKernel> rows;
};

std::string kernel_table_text(const KernelTable& table);
// Throws Error(kUsage) "FILE:LINE: ...". Whether the kernels exist is for SitePlan to say.
KernelTable parse_kernel_table(std::string_view text, const std::string& file);
// Reads `file` into options.tuned. Throws Error, also where it was made on another device than
// `device` or with other activations than options.activations, and under --exact.
void use_kernel_table(const std::string& file, const std::string& device,
                      ops::KernelOptions& options);

// Takes each "op=name" of --kernel. Throws Error(kUsage) with the names that there are.
void force_kernels(const std::vector<std::string>& kernels, ops::KernelOptions& options);

}  // namespace nibble::cli
