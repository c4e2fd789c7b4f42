"""transformers decodes the outputs of an exported run to the text that generate.py prints."""

import numpy as np
import pytest

import convert
import generate
import train
from configs import translation
from tests.corpora import write
from tests.pretrained.transformers_models import oracle
from tests.runs import tiny

pytestmark = pytest.mark.usefixtures("compile_once")

STYLES = {
    "t5_style": ({}, "T5ForConditionalGeneration"),
    "transformer_style": (dict(output_bias=True), "MarianMTModel"),
}
LENGTH = 24


class Styled:
    """configs/translation.py in the style of a published architecture."""

    def __init__(self, style):
        self.style = style

    def get_config(self):
        return translation.get_config(self.style)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece"])
@pytest.mark.parametrize("style", STYLES)
def test_a_translation_reads_the_same(style, tokenizer, tmp_path):
    torch, hf = oracle()
    more, architecture = STYLES[style]
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"etaoinshrdlu"], 4)) for _ in range(8)]
    lines = [" ".join(rng.choice(words, 5)) for _ in range(40)]
    for split in ("train", "validation"):
        for language in ("en", "de"):
            write(tmp_path / "data" / f"{split}.{language}", "\n".join(lines) + "\n")
    data = dict(
        path=str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"), tokenizer=tokenizer,
        tokenizer_size=600, length=LENGTH, encoder_length=LENGTH,
    )  # fmt: skip
    settings = dict(every=0, batches=1, metrics=(), samples=0)
    optimizer = dict(learning_rate=0.01, ema_decay=0.0)
    model = dict(dropout_residual=0.0, dropout_embedding=0.0, **more)
    config = tiny(
        Styled(style), steps=120, data=data, eval=settings, optimizer=optimizer, model=model,
        checkpoint=dict(every=120),
    )  # fmt: skip
    train.train_and_evaluate(config, str(tmp_path / "run"))
    convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))

    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    exported = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    assert type(exported).__name__ == architecture
    texts = lines[:4]
    found = generate.generate(tmp_path / "run", texts, max_new_tokens=12)
    for text, (answer,) in zip(texts, found, strict=True):
        prompt = theirs(text, return_tensors="pt")
        with torch.no_grad():
            ids = exported.generate(
                prompt["input_ids"], attention_mask=prompt["attention_mask"], max_new_tokens=12,
                do_sample=False, num_beams=1,
            )[0].tolist()  # fmt: skip
        assert ids[0] == exported.config.decoder_start_token_id and len(ids) > 4
        assert theirs.decode(ids, skip_special_tokens=True) == answer["text"]
        shown = theirs.decode(ids, skip_special_tokens=False)
        assert shown.startswith(theirs.convert_ids_to_tokens(ids[0])), "or nothing is left out"
        assert answer["text"].strip()
