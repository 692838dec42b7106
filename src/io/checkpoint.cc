#include "io/checkpoint.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "io/files.h"
#include "io/fused_experts.h"
#include "io/original_layout.h"
#include "io/pieces.h"

namespace nibble {
namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;
// Enough to keep a disk busy while others copy, whatever the number of cores.
constexpr int kReaders = 4;
constexpr int64_t kPieceBytes = int64_t{8} << 20;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::kCheckpoint, where + ": " + what);
}

class SafetensorsCheckpoint : public Checkpoint {
 public:
  explicit SafetensorsCheckpoint(const std::filesystem::path& directory)
      : directory_(directory), origin_(directory.string()) {
    const auto single = directory / "model.safetensors";
    const auto index = directory / "model.safetensors.index.json";
    if (std::filesystem::exists(single)) {
      tensors_ = add_file(single);
    } else if (std::filesystem::exists(index)) {
      add_shards(index);
    } else {
      throw Error(ErrorKind::kNotFound,
                  origin_ + ": has neither model.safetensors nor model.safetensors.index.json");
    }
    rename_original_layout();
    tensors_ = split_fused_experts(std::move(tensors_));
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  }

  const std::string& origin() const override { return origin_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }

  RangeReader make_reader() const override {
    return [this, reader = std::make_shared<StreamReader>()](const ReadJob& job) {
      for (int64_t done = 0; done < job.bytes; done += StreamReader::kPieceBytes) {
        const int64_t bytes = std::min(StreamReader::kPieceBytes, job.bytes - done);
        reader->read(files_[job.tensor->file], job.tensor->offset + job.begin + done,
                     {job.to + done, static_cast<size_t>(bytes)});
      }
    };
  }
  int num_readers() const override { return kReaders; }

 private:
  // Opens one file and returns its tensors.
  std::vector<TensorInfo> add_file(const std::filesystem::path& path) {
    File file(path);
    if (file.size_bytes() < 8) fail(file.name(), "has fewer than 8 bytes: truncated");
    std::byte start[8];
    file.read(0, start);
    const int64_t length = safetensors_header_bytes(start, file.size_bytes(), file.name());
    std::string header(static_cast<size_t>(length), '\0');
    file.read(8, std::as_writable_bytes(std::span(header)));
    std::vector<TensorInfo> tensors =
        parse_safetensors_header(header, file.size_bytes(), file.name());
    for (TensorInfo& t : tensors) t.file = static_cast<int>(files_.size());
    files_.push_back(std::move(file));
    return tensors;
  }

  void add_shards(const std::filesystem::path& index_path) {
    const std::string index_name = index_path.string();
    const SafetensorsIndex index =
        parse_safetensors_index(read_text_file(index_path, kMaxIndexBytes), index_name);
    std::map<std::string, int64_t> missing;  // shard -> tensors promised and not yet seen
    for (const auto& [tensor, shard] : index.file_of) ++missing[shard];
    int64_t bytes = 0;
    for (auto& [shard, promised] : missing) {
      const auto path = directory_ / shard;
      if (!std::filesystem::exists(path))
        fail(index_name, "names " + shard + ", which is missing: is the download complete?");
      for (TensorInfo& t : add_file(path)) {
        const auto it = index.file_of.find(t.name);
        if (it == index.file_of.end() || it->second != shard) {
          LOG_WARN("%s: tensor \"%s\" is not in the index for this file; ignored", path.c_str(),
                   t.name.c_str());
          continue;
        }
        --promised;
        bytes += t.bytes;
        tensors_.push_back(std::move(t));
      }
    }
    for (const auto& [shard, promised] : missing)
      if (promised != 0) report_missing(index, shard, index_name);
    if (index.total_bytes && *index.total_bytes != bytes)
      fail(index_name, "metadata.total_size is " + std::to_string(*index.total_bytes) +
                           " but the tensors have " + std::to_string(bytes) +
                           " bytes: do index and shards belong together?");
  }

  [[noreturn]] void report_missing(const SafetensorsIndex& index, const std::string& shard,
                                   const std::string& index_name) const {
    std::set<std::string_view> present;
    for (const TensorInfo& t : tensors_) present.insert(t.name);
    for (const auto& [tensor, file] : index.file_of)
      if (file == shard && !present.contains(tensor))
        fail(index_name, "tensor \"" + tensor + "\" is not in " + shard);
    fail(index_name, "tensors are missing from " + shard);
  }

  // OpenAI's names to Hugging Face's, where the checkpoint has them.
  void rename_original_layout() {
    if (std::none_of(tensors_.begin(), tensors_.end(),
                     [](const TensorInfo& t) { return is_original_name(t.name); }))
      return;
    std::map<std::string, int64_t> q_rows;  // "block.N.attn." -> columns of out.weight
    constexpr std::string_view kOut = "out.weight";
    for (const TensorInfo& t : tensors_)
      if (t.name.ends_with(".attn.out.weight") && t.shape.size() == 2)
        q_rows[t.name.substr(0, t.name.size() - kOut.size())] = t.shape[1];
    std::vector<TensorInfo> renamed;
    for (const TensorInfo& t : tensors_) {
      const size_t at = t.name.find("qkv.");
      const int64_t rows = at == std::string::npos ? 0 : q_rows[t.name.substr(0, at)];
      for (TensorInfo& part : from_original_tensor(t, rows, files_[t.file].name()))
        renamed.push_back(std::move(part));
    }
    tensors_ = std::move(renamed);
  }

  std::filesystem::path directory_;
  std::string origin_;
  std::vector<File> files_;
  std::vector<TensorInfo> tensors_;
};

class SelectedTensors : public Checkpoint {
 public:
  SelectedTensors(std::unique_ptr<Checkpoint> all,
                  const std::function<bool(const std::string&)>& wanted)
      : all_(std::move(all)) {
    for (const TensorInfo& t : all_->tensors())
      if (wanted(t.name)) tensors_.push_back(t);
  }
  const std::string& origin() const override { return all_->origin(); }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  RangeReader make_reader() const override { return all_->make_reader(); }
  int num_readers() const override { return all_->num_readers(); }

 private:
  std::unique_ptr<Checkpoint> all_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const std::span<const TensorInfo> all = tensors();
  const auto it = std::lower_bound(
      all.begin(), all.end(), name,
      [](const TensorInfo& t, std::string_view wanted) { return t.name < wanted; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

void Checkpoint::read(std::span<const ReadJob> jobs, const ReadProgress& progress) const {
  const std::vector<ReadJob> pieces = cut_in_file_order(jobs, kPieceBytes);
  int64_t total_bytes = 0;
  for (const ReadJob& piece : pieces) total_bytes += piece.bytes;
  run_pieces(
      std::ssize(pieces), num_readers(), total_bytes,
      [&]() -> PieceWorker {
        return [&pieces, reader = make_reader()](int64_t i) {
          reader(pieces[i]);
          return pieces[i].bytes;
        };
      },
      progress);
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& directory) {
  return std::make_unique<SafetensorsCheckpoint>(directory);
}

std::unique_ptr<Checkpoint> select_tensors(
    std::unique_ptr<Checkpoint> all, const std::function<bool(const std::string& name)>& wanted) {
  return std::make_unique<SelectedTensors>(std::move(all), wanted);
}

}  // namespace nibble
