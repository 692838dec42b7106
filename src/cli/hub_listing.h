// What a repo of the Hugging Face hub holds, as its API lists it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

struct HubFile {
  std::string path;  // "model.safetensors", "original/config.json"
  int64_t size = 0;
  // SHA-256 of the file's bytes (64 digits), or of small files git's SHA-1 of it (40). The cache
  // names files by it.
  std::string hash;

  bool in_folder() const { return path.find('/') != std::string::npos; }
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

// The answer to /api/models/REPO/revision/REVISION?blobs=true. Throws Error(kCheckpoint) for what
// is no such answer, and for names that would lead out of the cache.
HubListing read_hub_listing(std::string_view json);

}  // namespace nibble::cli
