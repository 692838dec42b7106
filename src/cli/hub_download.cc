#include "cli/hub_download.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "io/files.h"
#include "io/hub.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 6, kListTries = 3;
constexpr int64_t kMaxTokenBytes = 4096;
constexpr size_t kPieceBytes = 1 << 20;
constexpr std::chrono::milliseconds kProgressEvery{100};

// Letters that a URL's path has as they are; slashes part it.
std::string escape_path(const std::string& text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char letter : text) {
    const auto c = static_cast<unsigned char>(letter);
    if (std::isalnum(c) != 0 || std::strchr("-_.~/", c) != nullptr) {
      out += letter;
    } else {
      out.append({'%', kDigits[c >> 4], kDigits[c & 15]});
    }
  }
  return out;
}

// A branch may have slashes of its own ("refs/pr/1"); in a URL it is one part.
std::string escape_revision(const std::string& revision) {
  std::string out = escape_path(revision);
  for (size_t at = 0; (at = out.find('/', at)) != std::string::npos;) out.replace(at, 1, "%2F");
  return out;
}

Error refusal(const HubSource& source, const std::string& what, const WebAnswer& answer) {
  const std::string where =
      what + ": " + source.endpoint + " answers " + std::to_string(answer.status);
  if (answer.status == 401 || answer.status == 403) {
    return Error(ErrorKind::kNotFound,
                 where +
                     ": it is private or its terms are not accepted, or there is no such repo; " +
                     (source.token.empty() ? "set HF_TOKEN" : "the token is not enough"));
  }
  if (answer.status == 404) {
    return Error(ErrorKind::kNotFound, where + ": there is no such repo, revision or file" +
                                           (source.token.empty() ? ", or HF_TOKEN is needed" : ""));
  }
  return Error(ErrorKind::kNotFound, where);
}

bool may_pass(int status) { return status == 408 || status == 429 || status >= 500; }

// SHA-256, or git's SHA-1 of a file, which begins with its size.
class Digest {
 public:
  explicit Digest(const HubFile& file) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    const bool is_sha256 = file.hash.size() == 64;
    CHECK(EVP_DigestInit_ex(context_.get(), is_sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
    if (is_sha256) return;
    const std::string head = "blob " + std::to_string(file.size);
    update({head.c_str(), head.size() + 1});
  }
  void update(std::string_view bytes) {
    CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  std::string hex() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    CHECK(EVP_DigestFinal_ex(context_.get(), bytes, &size) == 1);
    std::string text;
    char digits[3];
    for (unsigned i = 0; i < size; ++i) {
      std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
      text += digits;
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// blobs/HASH.incomplete, which only one process writes at a time.
class PartFile {
 public:
  PartFile(fs::path path, const HubFile& file)
      : path_(std::move(path)), file_(file), digest_(file) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot be written");
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      throw Error(ErrorKind::kUsage, path_.string() + ": another program is fetching it");
    }
    take_what_is_there();
  }
  ~PartFile() { close(fd_); }
  PartFile(const PartFile&) = delete;

  int64_t size() const { return size_; }

  void write_at(int64_t offset, std::string_view bytes) {
    if (offset + static_cast<int64_t>(bytes.size()) <= size_) return;  // sent from the beginning
    if (offset > size_) throw WebError(file_.path + ": a piece is missing");
    bytes.remove_prefix(static_cast<size_t>(size_ - offset));
    if (size_ + static_cast<int64_t>(bytes.size()) > file_.size) {
      throw WebError(file_.path + ": is longer than the hub says");
    }
    digest_.update(bytes);
    while (!bytes.empty()) {
      const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), size_);
      if (n <= 0) fail("cannot be written");
      size_ += n;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  // False where the bytes are not those that the hub promised: they are dropped.
  bool finish(const fs::path& blob) {
    if (digest_.hex() != file_.hash) {
      fs::remove(path_);
      return false;
    }
    if (fsync(fd_) != 0) fail("cannot be written");
    fs::rename(path_, blob);
    return true;
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    const int error = errno;
    throw Error(ErrorKind::kNotFound, path_.string() + ": " + what + ": " + std::strerror(error));
  }

  void take_what_is_there() {
    const int64_t there = static_cast<int64_t>(fs::file_size(path_));
    if (there > file_.size) {
      if (ftruncate(fd_, 0) != 0) fail("cannot be written");
      return;
    }
    std::string piece(kPieceBytes, '\0');
    while (size_ < there) {
      const ssize_t n = pread(fd_, piece.data(), piece.size(), size_);
      if (n <= 0) fail("cannot be read");
      digest_.update({piece.data(), static_cast<size_t>(n)});
      size_ += n;
    }
  }

  const fs::path path_;
  const HubFile& file_;
  Digest digest_;
  int fd_ = -1;
  int64_t size_ = 0;
};

class Downloader {
 public:
  Downloader(const HubDownload& download, fs::path folder)
      : download_(download), folder_(std::move(folder)), pending_(download.listing.files) {
    // Files of the same bytes are one blob, fetched once.
    std::sort(pending_.begin(), pending_.end(), [](const HubFile& a, const HubFile& b) {
      return std::tie(a.hash, a.path) < std::tie(b.hash, b.path);
    });
    const auto same = [](const HubFile& a, const HubFile& b) { return a.hash == b.hash; };
    pending_.erase(std::unique(pending_.begin(), pending_.end(), same), pending_.end());
    // The largest is fetched first, so taken from behind.
    std::sort(pending_.begin(), pending_.end(),
              [](const HubFile& a, const HubFile& b) { return a.size < b.size; });
  }

  void work() {
    for (HubFile file; !failed_ && take(file);) {
      try {
        fetch(file);
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex_);
        if (!failed_.exchange(true)) error_ = e.what();
      }
    }
    --working_;
  }

  void run(const std::function<void(int64_t, int64_t)>& progress) {
    const int jobs = std::min<int>(download_.jobs, static_cast<int>(pending_.size()));
    working_ = jobs;
    std::vector<std::jthread> threads;
    for (int i = 0; i < jobs; ++i) threads.emplace_back([this] { work(); });
    while (working_ > 0) {
      progress(done_bytes_, old_bytes_);
      std::this_thread::sleep_for(kProgressEvery);
    }
    threads.clear();
    if (failed_) throw Error(ErrorKind::kNotFound, error_);
    progress(done_bytes_, old_bytes_);
  }

 private:
  bool take(HubFile& file) {
    const std::lock_guard lock(mutex_);
    if (pending_.empty()) return false;
    file = std::move(pending_.back());
    pending_.pop_back();
    return true;
  }

  void fetch(const HubFile& file) {
    const fs::path blob = folder_ / "blobs" / file.hash;
    if (fs::exists(blob)) {
      count_old(file.size);
    } else {
      // Bytes that are not what was promised are fetched once more, from the beginning.
      if (!fetch_blob(file, blob) && !fetch_blob(file, blob)) {
        throw Error(ErrorKind::kCheckpoint,
                    file.path + ": what came has not the hash that the hub promises");
      }
    }
    for (const HubFile& named : download_.listing.files) {
      if (named.hash != file.hash) continue;
      link(named, blob);
      if (named.path != file.path) count_old(named.size);
    }
  }

  bool fetch_blob(const HubFile& file, const fs::path& blob) {
    PartFile part(blob.string() + ".incomplete", file);
    int64_t counted = part.size();
    count_old(counted);
    auto wait = download_.source.retry_after;
    for (int tries = 0; part.size() < file.size || file.size == 0;) {
      const int64_t before = part.size();
      const std::string fault = fetch_rest(file, part, counted);
      if (fault.empty() && part.size() == file.size) break;
      if (part.size() > before) {
        tries = 0;
        wait = download_.source.retry_after;
      }
      if (++tries == kTries) {
        throw Error(ErrorKind::kNotFound,
                    file.path + ": " + (fault.empty() ? "ends too early" : fault) + ", " +
                        std::to_string(kTries) + " times; what came is kept: pull again");
      }
      sleep(wait);
      wait *= 2;
    }
    if (part.finish(blob)) return true;
    count_old(-file.size);
    return false;
  }

  void count_old(int64_t bytes) {
    old_bytes_ += bytes;
    done_bytes_ += bytes;
  }

  // What went wrong on the way, or "".
  std::string fetch_rest(const HubFile& file, PartFile& part, int64_t& counted) {
    const WebSink sink = [&](int64_t offset, std::string_view bytes) {
      if (failed_) throw WebError("another file failed");
      part.write_at(offset, bytes);
      done_bytes_ += part.size() - counted;
      counted = part.size();
    };
    try {
      const HubSource& source = download_.source;
      const WebAnswer answer =
          web_get({.url = parse_url(source.endpoint + "/" + download_.repo + "/resolve/" +
                                    download_.listing.commit + "/" + escape_path(file.path)),
                   .token = source.token,
                   .offset = part.size()},
                  sink);
      if (answer.status == 200 || answer.status == 206) return "";
      if (!may_pass(answer.status)) throw refusal(source, file.path, answer);
      sleep(std::chrono::seconds(std::min(answer.retry_after_s, 60)));
      return "the server answers " + std::to_string(answer.status);
    } catch (const WebError& e) {
      return e.what();
    }
  }

  // Ends early where another file has failed.
  void sleep(std::chrono::milliseconds time) const {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!failed_ && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::min(time, std::chrono::milliseconds(50)));
    }
  }

  void link(const HubFile& file, const fs::path& blob) {
    const fs::path link = folder_ / "snapshots" / download_.listing.commit / file.path;
    const std::lock_guard lock(mutex_);
    fs::create_directories(link.parent_path());
    fs::remove(link);
    fs::create_symlink(fs::relative(blob, link.parent_path()), link);
  }

  const HubDownload& download_;
  const fs::path folder_;
  std::mutex mutex_;
  std::vector<HubFile> pending_;
  std::string error_;
  std::atomic<bool> failed_{false};
  std::atomic<int> working_{0};
  std::atomic<int64_t> done_bytes_{0}, old_bytes_{0};
};

void require_space(const fs::path& folder, const HubListing& listing) {
  uint64_t missing = 0;
  std::set<std::string> counted;
  for (const HubFile& file : listing.files) {
    if (!counted.insert(file.hash).second) continue;
    const fs::path blob = folder / "blobs" / file.hash;
    const fs::path part = blob.string() + ".incomplete";
    if (fs::exists(blob)) continue;
    const uint64_t there = fs::exists(part) ? fs::file_size(part) : 0;
    missing += static_cast<uint64_t>(file.size) - std::min<uint64_t>(there, file.size);
  }
  const uint64_t free = fs::space(folder).available;
  if (missing <= free) return;
  throw Error(ErrorKind::kNotFound, folder.string() + ": " + std::to_string(missing >> 20) +
                                        " MiB are to come, and the disk has " +
                                        std::to_string(free >> 20) +
                                        " MiB left; HF_HOME names another place");
}

void write_ref(const fs::path& folder, const HubDownload& download) {
  if (download.revision == download.listing.commit) return;
  const fs::path ref = folder / "refs" / download.revision;
  fs::create_directories(ref.parent_path());
  std::ofstream(ref, std::ios::trunc) << download.listing.commit;
}

}  // namespace

HubSource hub_source_of_environment() {
  HubSource source;
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string endpoint = environment("HF_ENDPOINT"); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    parse_url(endpoint);
    source.endpoint = endpoint;
  }
  source.token = environment("HF_TOKEN");
  const fs::path file = hub_home_directory() / "token";  // where `hf auth login` puts it
  if (source.token.empty() && fs::is_regular_file(file)) {
    source.token = read_text_file(file, kMaxTokenBytes);
  }
  std::erase_if(source.token, [](unsigned char c) { return c <= ' ' || c >= 0x7f; });
  return source;
}

HubListing list_hub_files(const HubSource& source, const std::string& repo,
                          const std::string& revision) {
  const WebRequest request{.url = parse_url(source.endpoint + "/api/models/" + repo + "/revision/" +
                                            escape_revision(revision) + "?blobs=true"),
                           .token = source.token};
  auto wait = source.retry_after;
  for (int tries = 1;; ++tries, wait *= 2) {
    std::string fault;
    try {
      const WebAnswer answer = web_get(request);
      if (answer.status == 200) return read_hub_listing(answer.body);
      if (!may_pass(answer.status)) throw refusal(source, repo, answer);
      fault = "answers " + std::to_string(answer.status);
    } catch (const WebError& e) {
      fault = e.what();
    }
    if (tries == kListTries) {
      throw Error(ErrorKind::kNotFound, repo + ": " + source.endpoint + ": " + fault);
    }
    std::this_thread::sleep_for(wait);
  }
}

std::filesystem::path download_from_hub(const HubDownload& download,
                                        const std::function<void(int64_t, int64_t)>& progress) {
  const fs::path folder = download.cache / hub_folder(download.repo);
  fs::create_directories(folder / "blobs");
  fs::create_directories(folder / "snapshots" / download.listing.commit);
  require_space(folder, download.listing);
  Downloader(download, folder).run(progress);
  write_ref(folder, download);
  return folder / "snapshots" / download.listing.commit;
}

}  // namespace nibble::cli
