# needs: guidellm==0.8.1
"""GuideLLM: concurrent streams of synthetic prompts."""

import json

from common import ROOT, run, same, shell, snippet


def check_benchmark():
    more = f" --tokenizer kind=hf_auto,model={ROOT}/models/nibble-tiny-gpt-oss --output kind=json,path=out.json --disable-console"
    out = shell(snippet("GuideLLM").rstrip() + more + " >log 2>&1 || { tail -c 3000 log; exit 1; }\ncat out.json", timeout=600,
                HF_HUB_OFFLINE="1")
    totals = json.loads(out)["benchmarks"][0]["metrics"]["request_totals"]
    same((totals["successful"], totals["errored"]), (20, 0))


run(globals())
