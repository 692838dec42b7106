// Files of the Hugging Face hub into its cache, as huggingface_hub lays it out: blobs/HASH, links
// to them in snapshots/COMMIT/, and the commit in refs/REVISION once all of them are there.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/hub_listing.h"
#include "cli/web_client.h"

namespace nibble::cli {

struct HubSource {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT
  std::string token;                                // HF_TOKEN, or HF_HOME/token
  std::chrono::milliseconds retry_after{1000};      // doubled with every try that brings nothing
};
HubSource hub_source_of_environment();

// Throws Error: what is not there, what asks for a token, what cannot be reached.
HubListing list_hub_files(const HubSource& source, const std::string& repo,
                          const std::string& revision);

struct HubDownload {
  HubSource source;
  std::string repo, revision = "main";
  std::filesystem::path cache;
  HubListing listing;  // the files wanted
  int jobs = 8;        // files at a time
};

// progress(bytes, old): how many are there so far, of all files, and how many of them were there
// before; on this thread. What is there already is not fetched again, and a part of a file is
// continued; a blob gets its name only when its hash is right. Returns the snapshot's directory.
// Throws Error for the first file that fails.
std::filesystem::path download_from_hub(const HubDownload& download,
                                        const std::function<void(int64_t, int64_t)>& progress);

}  // namespace nibble::cli
