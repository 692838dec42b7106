#include "models/loaded_weights.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {
namespace {

int64_t code_bytes(const WeightSpec& spec) {
  const FormatRow& row = format_row(spec.format);
  return num_elements(spec) / row.block_elems * row.code_bytes;
}

int64_t scale_bytes(const WeightSpec& spec) { return size_bytes(spec) - code_bytes(spec); }

// Offsets of codes and scales of each weight. Scales lie behind the codes; only weights without
// scales can be joined.
struct Places {
  std::vector<int64_t> codes, scales;
  int64_t total_bytes = 0;
};

Places place(std::span<const WantedWeight> wanted) {
  Places places;
  for (const WantedWeight& w : wanted) {
    CHECK(!w.joined || scale_bytes(w.spec) == 0);
    if (!w.joined) places.total_bytes = Arena::padded(places.total_bytes);
    places.codes.push_back(places.total_bytes);
    places.total_bytes += code_bytes(w.spec);
    if (scale_bytes(w.spec) > 0) places.total_bytes = Arena::padded(places.total_bytes);
    places.scales.push_back(places.total_bytes);
    places.total_bytes += scale_bytes(w.spec);
  }
  return places;
}

}  // namespace

int64_t num_elements(const WeightSpec& spec) {
  int64_t n = 1;
  for (int64_t dim : spec.shape) n *= dim;
  return n;
}

int64_t size_bytes(const WeightSpec& spec) { return format_bytes(spec.format, num_elements(spec)); }

std::vector<WeightPart> sum_parts(std::span<const WantedWeight> wanted) {
  std::vector<WeightPart> parts;
  for (const WantedWeight& w : wanted) {
    auto at = std::find_if(parts.begin(), parts.end(),
                           [&](const WeightPart& p) { return p.name == w.part; });
    if (at == parts.end()) at = parts.insert(at, WeightPart{.name = w.part});
    at->bytes += size_bytes(w.spec);
  }
  return parts;
}

LoadedWeights::LoadedWeights(const Checkpoint& checkpoint, std::span<const WantedWeight> wanted,
                             const ReadProgress& progress) {
  std::vector<WeightSpec> specs;
  for (const WantedWeight& w : wanted) specs.push_back(w.spec);
  const std::vector<WeightInfo> found = match_weights(checkpoint, specs);

  const Places places = place(wanted);
  buffer_ = Buffer(places.total_bytes);
  auto* base = static_cast<uint8_t*>(buffer_.data());
  std::vector<ReadJob> jobs;
  for (size_t i = 0; i < wanted.size(); ++i) {
    Placed placed{specs[i], base + places.codes[i], nullptr};
    jobs.push_back(ReadJob::whole(*found[i].codes, placed.codes));
    if (found[i].scales != nullptr) {
      placed.scales = base + places.scales[i];
      jobs.push_back(ReadJob::whole(*found[i].scales, placed.scales));
    }
    placed_.emplace(specs[i].name, placed);
  }
  checkpoint.read(jobs, progress);
}

const LoadedWeights::Placed& LoadedWeights::find(const std::string& name) const {
  const auto at = placed_.find(name);
  CHECK(at != placed_.end());
  return at->second;
}

Weight LoadedWeights::matrix(const std::string& name, const std::string& bias, int64_t rows) const {
  const Placed& placed = find(name);
  const auto& shape = placed.spec.shape;
  CHECK(shape.size() == 2 || shape.size() == 3);
  Weight w{.format = placed.spec.format,
           .experts = shape.size() == 3 ? shape[0] : 1,
           .rows = std::max(rows, shape[shape.size() - 2]),
           .cols = shape.back(),
           .codes = placed.codes,
           .scales = placed.scales};
  if (!bias.empty()) w.bias = vector(bias);
  return w;
}

const uint16_t* LoadedWeights::vector(const std::string& name) const {
  const Placed& placed = find(name);
  CHECK(placed.spec.format == Format::kBF16);
  return reinterpret_cast<const uint16_t*>(placed.codes);
}

}  // namespace nibble
