"""lm-evaluation-harness against the server, on a task of our own.

UNFAZED_LM_EVAL is the Python of an environment with lm_eval/requirements.txt; without it the test is skipped.
"""

import json
import os
import pathlib
import subprocess

import pytest

from conftest import ROOT

HERE = pathlib.Path(__file__).parent / "lm_eval"


@pytest.fixture
def python():
    path = os.environ.get("UNFAZED_LM_EVAL")
    if not path:
        pytest.skip("UNFAZED_LM_EVAL names no Python with lm_eval/requirements.txt")
    return path


def test_local_completions_run_a_task_to_its_end(demo, python, tmp_path):
    tokenizer = tmp_path / "tokenizer"
    model = ROOT / "models" / "stories-moe-29m-Q4_0.gguf"
    subprocess.run([python, HERE / "tokenizer_from_gguf.py", model, tokenizer], check=True)
    arguments = ",".join(
        [
            f"model={demo.ready['model']}",
            f"base_url={demo.url}/v1/completions",
            f"tokenizer={tokenizer}",
            "tokenizer_backend=huggingface",
            "num_concurrent=4",
            "max_length=512",
        ]
    )
    subprocess.run(
        [python, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments]
        + ["--tasks", "unfazed_endings,unfazed_openings", "--include_path", HERE, "--batch_size", "4"]
        + ["--output_path", tmp_path / "results", "--log_samples"],
        check=True,
        cwd=HERE,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OPENAI_API_KEY": "none"},
    )
    [found] = (tmp_path / "results").rglob("results_*.json")
    results = json.loads(found.read_text())["results"]
    # Endings that no English text would have are beside the true ones; a model of English tells them apart.
    assert results["unfazed_endings"]["acc,none"] >= 0.8
    assert results["unfazed_openings"]["exact_match,none"] >= 0.5
