#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <string_view>

namespace nibble::cli {
namespace {

constexpr int kHistoryLines = 1000;

// libedit counts characters by the locale: UTF-8 whatever the machine is set to.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineEditor::Impl {
  std::string prompt;
  EditLine* edit = nullptr;
  History* history = nullptr;
  HistEvent event{};
};

LineEditor::LineEditor(std::string prompt) : impl_(std::make_unique<Impl>()) {
  use_utf8();
  impl_->prompt = std::move(prompt);
  impl_->edit = el_init("nibble", stdin, stdout, stderr);
  impl_->history = history_init();
  history(impl_->history, &impl_->event, H_SETSIZE, kHistoryLines);
  history(impl_->history, &impl_->event, H_SETUNIQUE, 1);
  el_set(impl_->edit, EL_CLIENTDATA, impl_.get());
  el_set(
      impl_->edit, EL_PROMPT, +[](EditLine* edit) {
        void* impl = nullptr;
        el_get(edit, EL_CLIENTDATA, &impl);
        return static_cast<Impl*>(impl)->prompt.data();
      });
  el_set(impl_->edit, EL_EDITOR, "emacs");
  el_set(impl_->edit, EL_HIST, ::history, impl_->history);
  el_set(impl_->edit, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineEditor::~LineEditor() {
  history_end(impl_->history);
  el_end(impl_->edit);
}

LineEditor::Ended LineEditor::read(std::string& line) {
  line.clear();
  int length = 0;
  errno = 0;
  const char* text = el_gets(impl_->edit, &length);
  if (text == nullptr || length <= 0) {
    if (length < 0 && errno == EINTR) {
      el_reset(impl_->edit);
      std::printf("^C\n");
      return Ended::kInterrupt;
    }
    return Ended::kEof;
  }
  line.assign(text, static_cast<size_t>(length));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (!line.empty()) history(impl_->history, &impl_->event, H_ENTER, line.c_str());
  return Ended::kLine;
}

}  // namespace nibble::cli
