// ModelLease: a model has the activations of one engine, the one that was made last: its reserve()
// has replaced those of the engine before, which may be asked and destroyed, but not run, any more.
#pragma once

#include <atomic>

#include "models/model.h"

namespace nibble {

class ModelLease {
 public:
  explicit ModelLease(const Model& model);  // ends the one that another engine has
  ~ModelLease();
  ModelLease(const ModelLease&) = delete;
  ModelLease& operator=(const ModelLease&) = delete;

  void check() const;  // before each step

 private:
  const Model& model_;
  std::atomic<bool> another_engine_has_the_model_ = false;
};

}  // namespace nibble
