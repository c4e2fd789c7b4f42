"""Windows of long contexts, and their best answers, are those of transformers."""

import json
import shutil

import numpy as np
import pytest

import convert
import generate
from checkpointing import loaded_run
from inference import predictors
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS, read_strings
from tests.pretrained.transformers_models import oracle, randomize

LENGTH, OVERLAP, LONGEST = 48, 128, 30  # of a row; of windows and answers: our defaults


def published(directory):
    """A random BERT for answers with a vocabulary of its own, as on the hub."""
    _, hf = oracle()
    directory.mkdir()
    shutil.copy(PATHS["bert_cased"], directory / "vocab.txt")
    settings = dict(tokenizer_class="BertTokenizer", do_lower_case=False)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    config = hf.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_attention_heads=2, num_hidden_layers=2,
        intermediate_size=20, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = randomize(hf.BertForQuestionAnswering(config), 3)
    model.save_pretrained(directory)
    return tokenizer, model.double()


def their_windows(tokenizer, question, context):
    """The windows as in transformers' example for SQuAD, with as large an overlap as ours."""
    room = LENGTH - 3 - len(tokenizer.tokenize(question))
    return tokenizer(
        question, context, max_length=LENGTH, truncation="only_second",
        stride=min(OVERLAP, room // 2), return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip


def their_best(model, windows, context):
    """The text with the highest sum of logits, over all spans of all windows."""
    torch, _ = oracle()
    best = (-np.inf, "")
    for number, ids in enumerate(windows["input_ids"]):
        kinds = windows.sequence_ids(number)
        offsets = windows["offset_mapping"][number]
        types = torch.tensor([windows["token_type_ids"][number]])
        with torch.no_grad():
            out = model(torch.tensor([ids]), token_type_ids=types)
        start, end = out.start_logits[0].numpy(), out.end_logits[0].numpy()
        places = [place for place, kind in enumerate(kinds) if kind == 1]
        for i in places:
            for j in places:
                if i <= j < i + LONGEST:
                    text = context[offsets[i][0] : offsets[j][1]]
                    best = max(best, (start[i] + end[j], text))
    return best


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_windows_and_answers_are_those_of_transformers(tmp_path):
    tokenizer, model = published(tmp_path / "bert")
    convert.convert(str(tmp_path / "bert"), str(tmp_path / "in"))
    strings = [" ".join(text.split()) for text in read_strings()]
    strings = [text for text in strings if len(text) > 8]
    asked = [(strings[n][:9], " ".join(strings[n + 1 : n + 2 + n])) for n in (0, 2, 5, 9)]
    asked.append((strings[7][:9], "Ada"))
    lines = [f"{question}\t{context}" for question, context in asked]
    predictor = predictors.make_predictor(loaded_run.load(tmp_path / "in"), {}, 2)
    found = generate.generate(tmp_path / "in", lines, batch_size=3)
    counts = []
    for (question, context), line, (output,) in zip(asked, lines, found, strict=True):
        windows = their_windows(tokenizer, question, context)
        predictor.prompt(line, "")
        *_, ours = predictor._questions[-1]
        assert [row["inputs"].tolist() for row in ours] == windows["input_ids"]
        assert [row["token_types"].tolist() for row in ours] == windows["token_type_ids"]
        score, text = their_best(model, windows, context)
        assert output["answer"] == text == context[output["start"] : output["end"]]
        assert output["score"] == pytest.approx(score, abs=3e-5)
        counts.append(len(ours))
    assert min(counts) == 1 and max(counts) > 2
