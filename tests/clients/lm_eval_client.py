# needs: lm-eval[api]==0.4.13 pyarrow==21.0.0
"""lm-eval: a multiple-choice task by log-probabilities and a generating one, over completions and over chat."""

import json

from common import MODEL, URL, holds, run, shell, snippet

TASKS = '''
mkdir -p tasks
cat >tasks/items.jsonl <<'END'
{"q": "France", "choices": ["London", "Paris", "Berlin"], "a": 1}
{"q": "Japan", "choices": ["Tokyo", "Oslo", "Rome"], "a": 0}
{"q": "Italy", "choices": ["Madrid", "Cairo", "Rome"], "a": 2}
END
for kind in multiple_choice generate_until; do
cat >tasks/$kind.yaml <<END
task: capital_$kind
dataset_path: json
dataset_kwargs: {data_files: {test: tasks/items.jsonl}}
test_split: test
output_type: $kind
END
done
cat >>tasks/multiple_choice.yaml <<'END'
doc_to_text: "The capital of {{q}} is"
doc_to_choice: choices
doc_to_target: a
metric_list: [{metric: acc}]
END
cat >>tasks/generate_until.yaml <<'END'
doc_to_text: "What is the capital of {{q}}?"
doc_to_target: "The capital of {{q}} is {{choices[a]}}."
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 300}
metric_list: [{metric: exact_match}]
END
'''


def results(command):
    out = shell(TASKS + f"{command} --include_path tasks --output_path out 2>&1\ncat out/*/results*.json", HF_HUB_OFFLINE="1",
                HF_DATASETS_TRUST_REMOTE_CODE="1", OPENAI_API_KEY="none")
    return json.loads(out[out.index('{\n  "results"'):])["results"]


def check_log_probabilities():
    command = snippet("lm-eval").rstrip().replace("TASK", "capital_multiple_choice")
    same = results(command)["capital_multiple_choice"]["acc,none"]
    assert same == 1.0, same


def check_generation_over_chat():
    got = results(f"lm_eval --model local-chat-completions --tasks capital_generate_until --apply_chat_template "
                  f"--model_args model={MODEL},base_url={URL}/v1/chat/completions,num_concurrent=2")
    got = got["capital_generate_until"]["exact_match,none"]
    assert got == 1.0, got


run(globals())
