// The twin of every matrix product: rows of a weight decoded one by one, summed in double.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops::ref {

// Row `row` of expert `e` as float32, exact. `out` has w.cols elements.
void decode_row(const Weight& w, int64_t e, int64_t row, float* out);

double bias_of(const Weight& w, int64_t e, int64_t row);  // 0 where there is none

// One row of a weight. dot() is sum_k w[row][k] x[k] + bias; where `abs` is given, *abs gets the
// sum of the magnitudes of these terms: what an error bound is a multiple of.
class Row {
 public:
  Row(const Weight& w, int64_t e, int64_t row);
  double dot(const float* x, double* abs = nullptr) const;

 private:
  std::vector<float> w_;
  double bias_;
};

// What makes a column of u: its row of the first matrix of an MLP, or its gate's and its up's.
class UpColumn {
 public:
  UpColumn(const Weight& up, int64_t e, int64_t column, const Swiglu& act) : act_(act) {
    for (int64_t i = 0; i < act.rows_each(); ++i)
      rows_.emplace_back(up, e, column * act.rows_each() + i);
  }
  double of(const float* h) const {
    if (act_.is_relu2()) return relu2(rows_[0].dot(h));
    return swiglu(rows_[0].dot(h), rows_[1].dot(h), act_);
  }

 private:
  std::vector<Row> rows_;
  Swiglu act_;
};

}  // namespace nibble::ops::ref
