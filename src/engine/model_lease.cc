#include "engine/model_lease.h"

#include <map>
#include <mutex>

#include "base/check.h"

namespace nibble {
namespace {

std::mutex mutex;
std::map<const Model*, ModelLease*> leases;  // guarded by it: the last of each

}  // namespace

ModelLease::ModelLease(const Model& model) : model_(model) {
  const std::lock_guard lock(mutex);
  ModelLease*& last = leases[&model];
  if (last != nullptr) last->another_engine_has_the_model_ = true;
  last = this;
}

ModelLease::~ModelLease() {
  const std::lock_guard lock(mutex);
  if (!another_engine_has_the_model_) leases.erase(&model_);
}

void ModelLease::check() const { CHECK(!another_engine_has_the_model_); }

}  // namespace nibble
