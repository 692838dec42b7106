// nibble pull: a model from the Hugging Face hub, or a mirror of it, into the cache.
#include <CLI/App.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/hub_download.h"
#include "cli/progress_bar.h"
#include "io/hub.h"

namespace nibble::cli {
namespace {

struct Options {
  std::string repo, revision = "main";
  bool all = false;
  int jobs = 8;
};

void pull(const Options& options) {
  if (!is_repo_id(options.repo)) {
    throw Error(ErrorKind::kUsage, options.repo + ": no repo id (organisation/name)");
  }
  if (!is_revision(options.revision)) {
    throw Error(ErrorKind::kUsage,
                "--revision " + options.revision + ": not a branch, tag or commit");
  }
  HubDownload download{.source = hub_source_of_environment(),
                       .repo = options.repo,
                       .revision = options.revision,
                       .cache = hub_cache_directory(),
                       .listing = {},
                       .jobs = options.jobs};
  download.listing = list_hub_files(download.source, options.repo, options.revision);
  if (!options.all) std::erase_if(download.listing.files, std::mem_fn(&HubFile::in_folder));
  int64_t total = 0;
  for (const HubFile& file : download.listing.files) total += file.size;
  ProgressBar bar(options.repo);
  const auto snapshot =
      download_from_hub(download, [&](int64_t bytes, int64_t old) { bar.show(bytes, total, old); });
  std::printf("%s\n", snapshot.c_str());
}

}  // namespace

void add_pull(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "pull",
      "Fetch a model from the Hugging Face hub into its cache (HF_HOME); run it again to go on");
  auto options = std::make_shared<Options>();
  command->add_option("REPO", options->repo, "organisation/name")->required();
  command->add_option("--revision", options->revision, "branch, tag or commit")
      ->capture_default_str();
  command->add_flag("--all", options->all,
                    "the files in the repo's folders too: they are mostly the same weights again");
  command->add_option("--jobs", options->jobs, "files fetched at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->footer(
      "HF_TOKEN: for private repos and those with terms. HF_ENDPOINT: a mirror instead of "
      "https://huggingface.co.");
  command->callback([options] { pull(*options); });
}

}  // namespace nibble::cli
