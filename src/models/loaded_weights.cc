#include "models/loaded_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/mxfp4.h"
#include "io/pieces.h"
#include "io/weight_rows.h"

namespace nibble {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;
// Each thread holds up to 24 MiB while it loads: enough of them to encode as fast as disks read.
constexpr int kMostThreads = 16;
// A weight that loses more than this share of its blocks to outliers is worth a warning.
constexpr double kManyFlattened = 0.01;

// A weight as rows of K elements: experts' rows follow one another; a vector is one row.
int64_t num_cols(const WeightSpec& spec) { return spec.shape.back(); }
int64_t num_rows(const WeightSpec& spec) {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < spec.shape.size(); ++i) n *= spec.shape[i];
  return n;
}

// The same of what this rank has, and the rows of one of its matrices.
int64_t num_cols(const WantedWeight& w) { return w.cols ? w.cols->size() : num_cols(w.spec); }
bool has_experts(const WantedWeight& w) { return w.spec.shape.size() > 2 && !w.is_vector; }
int64_t matrix_rows(const WantedWeight& w) {
  if (w.rows) return w.rows->size();
  return has_experts(w) ? w.spec.shape[1] : num_rows(w.spec);
}
int64_t num_rows(const WantedWeight& w) {
  return matrix_rows(w) * (has_experts(w) ? w.spec.shape[0] : 1);
}

// Bytes of one row, on disk or where it ends up.
struct RowSize {
  int64_t codes = 0;
  int64_t scales = 0;
  int64_t row_scales = 0;
};
RowSize row_size(Format format, Layout layout, int64_t cols) {
  return {row_code_bytes(format, layout, cols), row_scale_bytes(format, layout, cols),
          format_row(format).row_scales ? int64_t{sizeof(float)} : 0};
}
RowSize disk_size(const WantedWeight& w) {
  return row_size(w.spec.format, Layout::kRows, num_cols(w.spec));
}
RowSize final_size(const WantedWeight& w) { return row_size(w.format, w.layout, num_cols(w)); }

// Of wanted[i] and what alternates with its rows.
bool is_pair(std::span<const WantedWeight> wanted, size_t i) {
  return i + 1 < wanted.size() && wanted[i + 1].interleaved;
}
int64_t num_rows_of_both(std::span<const WantedWeight> wanted, size_t i) {
  return num_rows(wanted[i]) * (is_pair(wanted, i) ? 2 : 1);
}

// Rows of one fused matrix may fit a layout together and yet not one by one.
void require_layout(std::span<const WantedWeight> wanted, size_t i) {
  const WantedWeight& w = wanted[i];
  if (w.layout == Layout::kRows || w.interleaved) return;
  const int64_t rows = matrix_rows(w) * (is_pair(wanted, i) ? 2 : 1);
  const char* reason = refuse_layout(w.layout, w.format, rows, num_cols(w));
  if (reason == nullptr) return;
  throw Error(ErrorKind::kUnsupported, w.spec.name + " cannot lie in " +
                                           std::string(layout_name(w.layout)) + ": " + reason +
                                           "; --kernel op=name forces a kernel that reads rows");
}

// Offsets of the arrays of each weight. Joined weights lie codes by codes; the scales of all of
// them follow, and those of their rows. Of two that alternate, both are where the pair begins.
struct Places {
  std::vector<int64_t> codes, scales, row_scales;
  int64_t total_bytes = 0;
};

Places place(std::span<const WantedWeight> wanted) {
  Places places;
  places.codes.resize(wanted.size());
  places.scales.resize(wanted.size());
  places.row_scales.resize(wanted.size());
  for (size_t first = 0, end; first < wanted.size(); first = end) {
    end = first + 1;
    while (end < wanted.size() && (wanted[end].joined || wanted[end].interleaved)) ++end;
    const std::pair<std::vector<int64_t>*, int64_t RowSize::*> arrays[] = {
        {&places.codes, &RowSize::codes},
        {&places.scales, &RowSize::scales},
        {&places.row_scales, &RowSize::row_scales}};
    for (const auto& [offsets, bytes] : arrays) {
      places.total_bytes = Arena::padded(places.total_bytes);
      for (size_t i = first; i < end; ++i) {
        const WantedWeight& w = wanted[i];
        CHECK(w.format == wanted[first].format && w.layout == wanted[first].layout);
        CHECK(!w.interleaved || (i > first && w.spec.shape == wanted[i - 1].spec.shape));
        (*offsets)[i] = w.interleaved ? (*offsets)[i - 1] : places.total_bytes;
        if (!w.interleaved)
          places.total_bytes += num_rows_of_both(wanted, i) * (final_size(w).*bytes);
      }
    }
  }
  return places;
}

// Some rows of one weight, or of the two that alternate from it on: whole groups where it is
// packed.
struct RowTask {
  size_t weight;
  int64_t row, rows;
};

std::vector<RowTask> cut_rows(std::span<const WantedWeight> wanted,
                              std::span<const WeightInfo> found) {
  std::vector<RowTask> tasks;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].interleaved || num_elements(wanted[i]) == 0) continue;
    const int64_t all = num_rows_of_both(wanted, i);
    const int64_t per_group = kPieceBytes / (disk_size(wanted[i]).codes * kGroupRows);
    const int64_t rows = std::max<int64_t>(1, per_group) * kGroupRows;
    for (int64_t row = 0; row < all; row += rows)
      tasks.push_back({i, row, std::min(rows, all - row)});
  }
  const auto position = [&](const RowTask& t) {
    const TensorInfo& tensor = *found[t.weight].codes;
    const int64_t row = t.row / (is_pair(wanted, t.weight) ? 2 : 1);
    return std::pair(tensor.file, tensor.offset + row * disk_size(wanted[t.weight]).codes);
  };
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const RowTask& a, const RowTask& b) { return position(a) < position(b); });
  return tasks;
}

// One thread's way from the checkpoint to the final place.
class RowMover {
 public:
  RowMover(WeightRows rows, const WeightMemory& memory) : rows_(std::move(rows)), memory_(memory) {}

  struct Moved {
    std::optional<EncodeLoss> loss = EncodeLoss{};  // nullopt where they cannot be encoded
    uint8_t largest_scale = 0;
  };

  // `to` is where the rows finally lie; `infos` the weight's, or those of two that alternate.
  Moved move(const WantedWeight& w, std::span<const WeightInfo> infos, int64_t row, int64_t rows,
             const RowBytes& to) {
    if (w.is_vector && (w.format != w.spec.format || w.format == Format::kF32))
      return move_vector(w, infos[0], row, rows, to);
    const bool encodes = w.format != w.spec.format, packs = w.layout != Layout::kRows;
    const bool cuts = w.cols && !w.cols->is_whole();  // once encoded: a row may have one scale
    const int64_t cols = num_cols(w), all_cols = num_cols(w.spec);
    const RowBytes out = memory_.copy ? stage(last_, rows, final_size(w)) : to;
    RowBytes unpacked = packs ? stage(middle_, rows, row_size(w.format, Layout::kRows, cols)) : out;
    unpacked.row_scales = out.row_scales;  // which no layout moves
    RowBytes encoded =
        cuts ? stage(whole_, rows, row_size(w.format, Layout::kRows, all_cols)) : unpacked;
    encoded.row_scales = out.row_scales;
    const RowBytes raw = encodes ? stage(first_, rows, disk_size(w)) : encoded;

    read(w, infos, row, rows, raw);
    Moved moved;
    if (encodes)
      moved.loss = encode_rows(w.format, rows, all_cols,
                               reinterpret_cast<const uint16_t*>(raw.codes), encoded);
    const bool has_e8m0 = w.format == Format::kMxfp4 || w.format == Format::kMxfp8;
    const int64_t scales = has_e8m0 ? rows * row_scale_bytes(w.format, Layout::kRows, all_cols) : 0;
    for (int64_t i = 0; i < scales; ++i)
      moved.largest_scale = std::max(moved.largest_scale, encoded.scales[i]);
    if (cuts) cut_columns(w, rows, encoded, unpacked);
    if (packs) pack_rows(w.format, w.layout, rows, cols, {unpacked.codes, unpacked.scales}, out);
    if (memory_.copy) {
      memory_.copy(to.codes, out.codes, rows * final_size(w).codes);
      if (final_size(w).scales > 0)
        memory_.copy(to.scales, out.scales, rows * final_size(w).scales);
      if (final_size(w).row_scales > 0)
        memory_.copy(to.row_scales, out.row_scales, rows * final_size(w).row_scales);
    }
    return moved;
  }

 private:
  struct Stage {
    Buffer codes, scales, row_scales;
  };
  // The rank's columns of whole rows.
  static void cut_columns(const WantedWeight& w, int64_t rows, const RowBytes& from,
                          const RowBytes& to) {
    const Cut& cut = w.cols->only();
    const RowSize all = row_size(w.format, Layout::kRows, cut.all);
    const RowSize here = row_size(w.format, Layout::kRows, cut.size);
    const RowSize before = row_size(w.format, Layout::kRows, cut.begin);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(to.codes + r * here.codes, from.codes + r * all.codes + before.codes, here.codes);
      if (here.scales == 0) continue;
      std::memcpy(to.scales + r * here.scales, from.scales + r * all.scales + before.scales,
                  here.scales);
    }
  }
  // Of the rank's rows, which are the same of every expert.
  void read_one(const WantedWeight& w, const WeightInfo& info, int64_t row, int64_t rows,
                const RowBytes& to) {
    if (!w.rows || w.rows->is_whole()) return rows_.read(info, row, rows, to);
    const RowSize size = disk_size(w);
    for (int64_t done = 0; done < rows;) {
      const int64_t expert = (row + done) / w.rows->size(), at = (row + done) % w.rows->size();
      const int64_t n = std::min(rows - done, w.rows->run(at));
      rows_.read(info, expert * w.rows->all() + w.rows->find(at), n,
                 {to.codes + done * size.codes,
                  to.scales == nullptr ? nullptr : to.scales + done * size.scales,
                  to.row_scales == nullptr ? nullptr : to.row_scales + done});
      done += n;
    }
  }
  // Rows of one weight, or every other of each of two.
  void read(const WantedWeight& w, std::span<const WeightInfo> infos, int64_t row, int64_t rows,
            const RowBytes& to) {
    if (infos.size() == 1) return read_one(w, infos[0], row, rows, to);
    const RowSize size = disk_size(w);
    const int64_t half = rows / 2;
    const RowBytes part = stage(part_, half, size);
    for (int64_t i = 0; i < 2; ++i) {
      read_one(w, infos[static_cast<size_t>(i)], row / 2, half, part);
      for (int64_t r = 0; r < half; ++r) {
        const int64_t at = 2 * r + i;
        std::memcpy(to.codes + at * size.codes, part.codes + r * size.codes, size.codes);
        if (size.scales > 0)
          std::memcpy(to.scales + at * size.scales, part.scales + r * size.scales, size.scales);
        if (size.row_scales > 0) to.row_scales[at] = part.row_scales[r];
      }
    }
  }
  // What kernels read in another format of floats.
  Moved move_vector(const WantedWeight& w, const WeightInfo& info, int64_t row, int64_t rows,
                    const RowBytes& to) {
    const int64_t cols = num_cols(w), n = rows * cols;
    const int64_t all_cols = num_cols(w.spec);
    const RowBytes raw = stage(first_, rows, disk_size(w));
    const RowBytes out = memory_.copy ? stage(last_, rows, final_size(w)) : to;
    read_one(w, info, row, rows, raw);
    int64_t inexact = 0;
    bool is_finite = true;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t col = w.cols ? w.cols->find(i % cols) : i % cols;
      const float value = value_at(w.spec.format, raw.codes, i / cols * all_cols + col);
      if (w.format == Format::kF32) {
        reinterpret_cast<float*>(out.codes)[i] = value;
        is_finite &= std::isfinite(value);
        continue;
      }
      auto* bits = reinterpret_cast<uint16_t*>(out.codes);
      bits[i] = bf16_from_float(value);
      inexact += bf16_to_float(bits[i]) != value;
    }
    if (inexact > 0)
      LOG_WARN("%s: %lld of %lld values rounded from %s to bf16", w.spec.name.c_str(),
               static_cast<long long>(inexact), static_cast<long long>(n),
               std::string(format_name(w.spec.format)).c_str());
    if (memory_.copy) memory_.copy(to.codes, out.codes, rows * final_size(w).codes);
    Moved moved;
    if (!is_finite) moved.loss = std::nullopt;
    return moved;
  }
  static float value_at(Format format, const uint8_t* codes, int64_t i) {
    if (format == Format::kF32) return reinterpret_cast<const float*>(codes)[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(codes)[i];
    return format == Format::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
  }
  RowBytes stage(Stage& s, int64_t rows, const RowSize& size) {
    grow(s.codes, rows * size.codes);
    grow(s.scales, rows * size.scales);
    grow(s.row_scales, rows * size.row_scales);
    return {static_cast<uint8_t*>(s.codes.data()), static_cast<uint8_t*>(s.scales.data()),
            static_cast<float*>(s.row_scales.data())};
  }
  void grow(Buffer& buffer, int64_t bytes) {
    if (buffer.size_bytes() < bytes) buffer = memory_.allocate_staging(bytes);
  }

  WeightRows rows_;
  const WeightMemory& memory_;
  Stage first_, whole_, middle_, last_, part_;
};

// What was lost, by part and format; every weight that lost much.
void log_losses(std::span<const WantedWeight> wanted, std::span<const EncodeLoss> losses) {
  std::map<std::string, EncodeLoss> sums;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const WantedWeight& w = wanted[i];
    if (losses[i].blocks == 0) continue;
    sums[w.part + " as " + std::string(format_name(w.format))] += losses[i];
    if (losses[i].flattened_share() > kManyFlattened)
      LOG_WARN(
          "%s as %s: outliers zero more than half of the other values in %.1f%% of its blocks; "
          "leave it in bf16 or mxfp8",
          w.spec.name.c_str(), format_name(w.format).data(), 100 * losses[i].flattened_share());
  }
  for (const auto& [what, loss] : sums)
    LOG_INFO("%s: rms error %.2f%% of the weights', %lld of %lld blocks flattened by outliers",
             what.c_str(), 100 * loss.relative_rms(), static_cast<long long>(loss.flattened),
             static_cast<long long>(loss.blocks));
}

}  // namespace

Cuts::Cuts(std::initializer_list<Cut> all) {
  for (const Cut& part : all) add(part);
}

Cuts Cuts::rows(std::span<const int32_t> ids, int64_t of) {
  Cuts cuts{};
  for (const int32_t id : ids) cuts.add({of, id, 1});
  return cuts;
}

void Cuts::add(const Cut& part) {
  ends.push_back((ends.empty() ? 0 : ends.back()) + part.size);
  if (parts.empty() || parts.back().end() != part.begin) return parts.push_back(part);
  parts.back().size += part.size;
  ends.erase(ends.end() - 2);
}

const Cut& Cuts::only() const {
  CHECK(parts.size() == 1);
  return parts[0];
}

size_t Cuts::part_of(int64_t i) const {
  const auto at = std::ranges::upper_bound(ends, i);
  CHECK(at != ends.end());
  return at - ends.begin();
}

int64_t Cuts::find(int64_t i) const {
  const size_t part = part_of(i);
  return parts[part].end() - (ends[part] - i);
}

int64_t Cuts::run(int64_t i) const { return ends[part_of(i)] - i; }

int64_t num_elements(const WeightSpec& spec) { return num_rows(spec) * num_cols(spec); }
int64_t num_elements(const WantedWeight& w) { return num_rows(w) * num_cols(w); }

void take_disk_formats(const Checkpoint& checkpoint, std::span<WantedWeight> wanted) {
  std::map<std::string_view, Format> found;
  const std::vector<WeightInfo> all = list_weights(checkpoint);
  for (const WeightInfo& info : all) found[info.name] = info.format;
  for (WantedWeight& w : wanted) {
    const auto it = found.find(w.spec.name);
    if (it == found.end()) continue;
    w.spec.format = it->second;
    if (!w.is_vector) w.format = it->second == Format::kBF16 ? w.encoded : it->second;
  }
}

int64_t resident_bytes(const WantedWeight& weight) {
  const RowSize size = row_size(weight.format, Layout::kRows, num_cols(weight));
  return num_rows(weight) * (size.codes + size.scales + size.row_scales);
}

std::vector<WeightPart> sum_parts(std::span<const WantedWeight> wanted) {
  std::vector<WeightPart> parts;
  std::map<std::pair<std::string, Format>, int64_t> bytes_of;
  for (const WantedWeight& w : wanted) {
    auto at = std::find_if(parts.begin(), parts.end(),
                           [&](const WeightPart& p) { return p.name == w.part; });
    if (at == parts.end())
      at = parts.insert(at, {.name = w.part, .chosen = w.chosen, .choices = w.choices});
    at->bytes += resident_bytes(w);
    bytes_of[{w.part, w.format}] += resident_bytes(w);
  }
  for (WeightPart& part : parts)
    for (const FormatRow& row : kFormats)
      if (20 * bytes_of[{part.name, row.format}] >= part.bytes)  // not the biases of a matrix
        part.formats += (part.formats.empty() ? "" : ", ") + std::string(row.name);
  return parts;
}

// Allocates all of them and says where each lies.
void LoadedWeights::put(std::span<const WantedWeight> wanted, const WeightMemory& memory) {
  const Places places = place(wanted);
  buffer_ = memory.allocate(places.total_bytes);
  auto* base = static_cast<uint8_t*>(buffer_.data());
  for (size_t i = 0; i < wanted.size(); ++i) {
    placed_.push_back({wanted[i], base + places.codes[i],
                       final_size(wanted[i]).scales > 0 ? base + places.scales[i] : nullptr,
                       final_size(wanted[i]).row_scales > 0
                           ? reinterpret_cast<float*>(base + places.row_scales[i])
                           : nullptr});
    index_.emplace(wanted[i].spec.name, i);
  }
}

// Random codes under scales all alike. `like`: deviation and seed.
void LoadedWeights::fill_fp8(const Placed& p, int64_t rows, RandomBytes like,
                             const WeightMemory& memory) {
  using Kind = RandomBytes::Kind;
  const bool has_tiles = p.weight.layout == Layout::kTiles16x64;
  const bool is_mxfp8 = p.weight.format == Format::kMxfp8;
  const RowSize size = final_size(p.weight);
  like.kind = Kind::kE4m3Codes;
  if (has_tiles && is_mxfp8) like.kind = Kind::kMxfp8Tiles;
  if (has_tiles && p.weight.format == Format::kFp8Block) like.kind = Kind::kFp8Tiles;
  like.rms /= kE4m3CodesRms;
  memory.random(p.codes, rows * size.codes, like);
  like.kind = is_mxfp8 ? Kind::kScales : Kind::kFloats;
  if (size.scales > 0) memory.random(p.scales, rows * size.scales, like);
  if (size.row_scales > 0) memory.random(p.row_scales, rows * size.row_scales, like);
}

LoadedWeights::LoadedWeights(std::span<const WantedWeight> wanted, const WeightMemory& memory,
                             uint64_t seed) {
  uint64_t stream = seed << 32;
  put(wanted, memory);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Placed& p = placed_[i];
    const WantedWeight& w = p.weight;
    if (w.interleaved) continue;  // made with the one before
    const int64_t rows = num_rows_of_both(wanted, i);
    const RowSize size = final_size(w);
    using Kind = RandomBytes::Kind;
    RandomBytes codes{.kind = Kind::kConstant, .rms = dummy_deviation(w.spec), .seed = stream++};
    if (num_elements(w) == 0) continue;
    if (w.spec.fill == Fill::kOne) codes.constant = bf16_from_float(1);
    if (codes.rms > 0 && w.format == Format::kBF16) codes.kind = Kind::kNormalBF16;
    if (w.format == Format::kFp8Row || w.format == Format::kFp8Block ||
        w.format == Format::kMxfp8) {
      fill_fp8(p, rows, codes, memory);
      continue;
    }
    const bool is_f32 = w.format == Format::kF32;
    if (is_f32) codes = {.kind = Kind::kFloats, .rms = w.spec.fill == Fill::kOne ? 1 : codes.rms};
    const bool is_nvfp4 = w.format == Format::kNvfp4, is_mxfp4 = w.format == Format::kMxfp4;
    if (codes.rms > 0 && (is_mxfp4 || is_nvfp4)) {
      const Kind tiles = is_nvfp4 ? Kind::kNvfp4Tiles : Kind::kTiles;
      codes.kind = w.layout == Layout::kTiles16x64 ? tiles : Kind::kUniform;
      codes.rms = dummy_scale_rms(w.spec);
    }
    CHECK(w.format == Format::kBF16 || is_f32 || ((is_mxfp4 || is_nvfp4) && codes.rms > 0));
    memory.random(p.codes, rows * size.codes, codes);
    if (is_nvfp4)
      memory.random(p.row_scales, rows * size.row_scales,
                    {.kind = Kind::kFloats, .rms = codes.rms / kE4m3ScalesRms});
    if (size.scales == 0) continue;
    memory.random(
        p.scales, rows * size.scales,
        {.kind = is_nvfp4 ? Kind::kE4m3Scales : Kind::kScales, .rms = codes.rms, .seed = stream++});
  }
}

LoadedWeights::LoadedWeights(const Checkpoint& checkpoint, std::span<const WantedWeight> wanted,
                             const WeightMemory& memory, int threads,
                             const ReadProgress& progress) {
  std::vector<WeightSpec> specs;
  for (size_t i = 0; i < wanted.size(); ++i) {
    require_layout(wanted, i);
    specs.push_back(wanted[i].spec);
  }
  const std::vector<WeightInfo> found = match_weights(checkpoint, specs);

  put(wanted, memory);
  int64_t disk_bytes = 0;
  for (const WeightInfo& info : found) disk_bytes += info.bytes();

  const std::vector<RowTask> tasks = cut_rows(wanted, found);
  std::vector<EncodeLoss> task_losses(tasks.size());
  const auto run = [&](RowMover& mover, int64_t t) {
    const size_t i = tasks[t].weight;
    const int64_t row = tasks[t].row, rows = tasks[t].rows;
    const RowSize size = final_size(wanted[i]);
    const Placed& at = placed_[i];
    const RowBytes to{at.codes + row * size.codes,
                      at.scales == nullptr ? nullptr : at.scales + row * size.scales,
                      at.row_scales == nullptr ? nullptr : at.row_scales + row};
    const size_t parts = is_pair(wanted, i) ? 2 : 1;
    const RowMover::Moved moved =
        mover.move(wanted[i], std::span(found).subspan(i, parts), row, rows, to);
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::kCheckpoint, checkpoint.origin() + ": tensor \"" +
                                              wanted[i].spec.name + "\": rows " +
                                              std::to_string(row) + " to " +
                                              std::to_string(row + rows - 1) + " hold " + what);
    };
    if (!moved.loss && wanted[i].is_vector) refuse("a value that is infinite or no number");
    if (!moved.loss)
      refuse("a value that is infinite or no number; it cannot become " +
             std::string(format_name(wanted[i].format)));
    if (moved.largest_scale > kLargestE8m0)
      refuse("a block whose scale is " +
             (moved.largest_scale == 255 ? "no number"
                                         : "2^" + std::to_string(moved.largest_scale - 127)) +
             "; 2^" + std::to_string(kLargestE8m0 - 127) + " is the most that kernels take");
    task_losses[t] = *moved.loss;
    // Its part of what lies on disk, where scales may be fewer than in memory.
    const int64_t all = num_rows_of_both(wanted, i);
    int64_t bytes = 0;
    for (size_t part = i; part < i + parts; ++part) bytes += found[part].bytes();
    return bytes * (row + rows) / all - bytes * row / all;
  };
  run_pieces(
      std::ssize(tasks), std::min(kMostThreads, std::max(threads, checkpoint.num_readers())),
      disk_bytes,
      [&]() -> PieceWorker {
        auto mover =
            std::make_shared<RowMover>(WeightRows(checkpoint, checkpoint.make_reader()), memory);
        return [&run, mover](int64_t t) { return run(*mover, t); };
      },
      progress);
  std::vector<EncodeLoss> losses(wanted.size());
  for (size_t t = 0; t < tasks.size(); ++t) losses[tasks[t].weight] += task_losses[t];
  log_losses(wanted, losses);
}

const LoadedWeights::Placed& LoadedWeights::find(const std::string& name) const {
  const auto at = index_.find(name);
  CHECK(at != index_.end());
  return placed_[at->second];
}

Weight LoadedWeights::matrix(size_t i, int64_t experts, int64_t rows) const {
  const Placed& placed = placed_.at(i);
  return {.format = placed.weight.format,
          .layout = placed.weight.layout,
          .experts = experts,
          .rows = rows,
          .cols = num_cols(placed.weight),
          .codes = placed.codes,
          .scales = placed.scales,
          .row_scales = placed.row_scales};
}

Weight LoadedWeights::matrix(const std::string& name, const std::string& bias, int64_t rows) const {
  const auto& shape = find(name).weight.spec.shape;
  CHECK(shape.size() == 2 || shape.size() == 3);
  Weight w = matrix(index_.at(name), shape.size() == 3 ? shape[0] : 1,
                    std::max(rows, shape[shape.size() - 2]));
  if (!bias.empty()) w.bias = vector(bias);
  return w;
}

const uint16_t* LoadedWeights::vector(size_t i) const {
  const Placed& placed = placed_.at(i);
  CHECK(placed.weight.format == Format::kBF16);
  return reinterpret_cast<const uint16_t*>(placed.codes);
}

const float* LoadedWeights::floats(size_t i) const {
  const Placed& placed = placed_.at(i);
  CHECK(placed.weight.format == Format::kF32);
  return reinterpret_cast<const float*>(placed.codes);
}

const uint16_t* LoadedWeights::vector(const std::string& name) const {
  return vector(static_cast<size_t>(&find(name) - placed_.data()));
}

}  // namespace nibble
