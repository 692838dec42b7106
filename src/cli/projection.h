// How long the ops of a step should take on a device, by the kernels that its tables choose: what
// `nibble plan --tokens` prints for machines that are not there. A projection, never a measurement.
//
// An op takes what its launches cost and the largest of three: its bytes of DRAM at the share of
// the read rate that kernels reach, its matrix products at the tensor pipe's rate, and the
// issue slots and shared memory of its inner loop, trip by trip (tools/check_loops.py). What rows
// cost is fitted to them on an H200 where they run there; projection_test.cc holds it to those
// figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/caps.h"
#include "models/step_work.h"
#include "ops/kernel_table.h"
#include "ops/plan.h"

namespace nibble::cli {

struct ProjectionDevice {
  cuda::Caps gpu;
  double bandwidth = 0;  // bytes a second of plain reads
  double clock = 0;      // Hz, of SMs under load
  // FLOP of an SM and clock: bf16 by HMMA, E2M1 x E4M3 by block-scaled QMMA, E2M1 x E2M1 by OMMA.
  double hmma = 0, qmma = 0, omma = 0;
};
// "gb10": 233 GB/s, 2.4 GHz and its family's published rates, none measured there; "h200", by which
// the costs of rows are held to what was measured.
std::optional<ProjectionDevice> find_projection_device(std::string_view name);

// The row that a plan has for a site, by its label, in a step of so many tokens; "": none.
std::string kernel_at(const std::vector<ops::PlanEntry>& plan, const std::string& site,
                      int64_t tokens);

struct OpTime {
  double bytes = 0;                          // moved, what its launches hand each other included
  double memory = 0, tensor = 0, issue = 0;  // seconds of each alone
  double fixed = 0;                          // launches, and what waits for what is in front
  int launches = 0;                          // of up to 256 tokens; 0: not counted
  double seconds() const;
  const char* bound() const;  // "memory", "tensor", "issue"
};

// Of one op by the row `kernel`; nullopt: no cost is known of that row.
std::optional<OpTime> project(const ops::Problem& problem, std::string_view kernel,
                              const ops::StepShape& shape, const ProjectionDevice& device);

struct ProjectedOp {
  std::string op, kernel;
  int64_t sites = 0;  // that run it so
  double each = 0;    // bytes of one
  OpTime time;        // of all of them
};
// A step's ops, alike ones together. Throws Error(kUnsupported) for rows whose cost is not known.
std::vector<ProjectedOp> project_step(const std::string& model, const DenseFormats& dense,
                                      ops::ActFormat activations, const ops::StepShape& shape,
                                      const ProjectionDevice& device);

// Launches of a row's call on the shapes of gpt-oss; 0: not counted.
int launches_of(std::string_view op, std::string_view kernel, int64_t tokens);
// Of a step; 0: of some of its ops they are not counted.
int launches_of(const std::vector<ProjectedOp>& step);

}  // namespace nibble::cli
