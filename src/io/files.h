// Files: small ones read whole, large ones read in ranges without filling the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tensor/buffer.h"

namespace nibble {

// Throws Error: kNotFound where there is no such file, kCheckpoint where it is larger than
// max_bytes or cannot be read.
std::string read_text_file(const std::filesystem::path& file, int64_t max_bytes);

// A regular file, open for reading.
class File {
 public:
  // Throws like read_text_file.
  explicit File(const std::filesystem::path& file);
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  const std::string& name() const { return name_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Bytes [offset, offset + to.size()), through the page cache. Throws Error(kCheckpoint) where the
  // file ends before.
  void read(int64_t offset, std::span<std::byte> to) const;

 private:
  friend class StreamReader;
  std::string name_;
  int fd_ = -1;
  int direct_fd_ = -1;  // O_DIRECT; -1 where the file system has none
  int64_t size_bytes_ = 0;
};

// One thread's reader of large ranges. What the page cache already holds is copied from there;
// the rest is read past it (O_DIRECT into an aligned piece, then copied), or through it and dropped
// behind where the file system has no direct reads. So loading never leaves more in memory than it
// found, apart from its destination.
class StreamReader {
 public:
  static constexpr int64_t kPieceBytes = 8 << 20;

  StreamReader();

  // At most kPieceBytes. Throws Error(kCheckpoint) where the file ends before or cannot be read.
  void read(const File& file, int64_t offset, std::span<std::byte> to);

 private:
  Buffer memory_;
  std::byte* piece_;  // in memory_: aligned, and a little longer than a piece
};

}  // namespace nibble
