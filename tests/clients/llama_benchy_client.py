# needs: llama-benchy==0.4.0
"""llama-benchy: the benchmark that Spark owners paste."""

import hashlib

from common import ROOT, holds, run, shell, snippet

# It fetches a book and a tokenizer from the network: here both are given.
BOOK = "https://books.invalid/a-book.txt"
CACHED = "$HOME/.cache/llama-benchy/" + hashlib.md5(BOOK.encode()).hexdigest() + ".txt"


def check_benchmark():
    book = f"mkdir -p $HOME/.cache/llama-benchy; yes 'Can you write a poem about the sea?' | head -3000 >{CACHED}\n"
    more = f" --tokenizer {ROOT}/models/nibble-tiny-gpt-oss --book-url {BOOK} --skip-coherence --extra-body temperature=0 --exact-tg"
    out = shell(book + snippet("llama-benchy").rstrip() + more, HF_HUB_OFFLINE="1")
    holds(out, "pp256")
    holds(out, "tg32")


run(globals())
