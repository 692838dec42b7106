# needs: aiperf==0.13.0
"""AIPerf: a load of streams, and what the server says of itself meanwhile."""

import json

from common import ROOT, run, same, shell, snippet

MORE = f" --tokenizer {ROOT}/models/nibble-tiny-gpt-oss --isl 64 --osl 16 --ui none --random-seed 1"


def check_profile():
    out = shell(snippet("AIPerf").rstrip() + MORE + " >log 2>&1 || { tail -c 3000 log; exit 1; }\n"
                "cat artifacts/*/profile_export_aiperf.json", timeout=600)
    report = json.loads(out)
    same(report["request_count"]["avg"], 20)
    assert report["time_to_first_token"]["avg"] > 0


run(globals())
