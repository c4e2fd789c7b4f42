"""M2M-100, NLLB and mBART-50: outputs begin with the language that convert.py was given.

Loss, generated texts and exports are those of transformers, with its tokenizers' labels.
"""

import numpy as np
import pytest

import convert
import generate
from checkpointing import loaded_run
from experiment.schema import ConfigError
from pretrained.published_tokenizer import Languages
from tests.input_pipeline.tokenizers.test_language_tokens import CASES, write
from tests.pretrained.test_marian_targets import LINES, scores
from tests.pretrained.transformers_models import oracle
from visualization.model_inputs import read_input

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("compile_once"),
    pytest.mark.filterwarnings("ignore"),
]
SIZES = dict(
    d_model=16, init_std=0.5, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32,
    scale_embedding=True, bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
)  # fmt: skip


@pytest.fixture(scope="module", params=["M2M100", "Nllb", "MBart50"])
def translator(request, tmp_path_factory):
    """Their model and tokenizer, and the run of an import from one language to the other."""
    torch, hf = oracle()
    kind = request.param
    directory = tmp_path_factory.mktemp(kind)
    write(kind, hf, directory / "hub")
    source, target = CASES[kind]
    tokenizer = getattr(hf, f"{kind}Tokenizer").from_pretrained(
        directory / "hub", src_lang=source, tgt_lang=target
    )
    name = "MBart" if kind == "MBart50" else "M2M100"
    config = getattr(hf, f"{name}Config")(vocab_size=len(tokenizer) + 3, **SIZES)
    language = tokenizer(text_target="a")["input_ids"][0]
    for seed in range(60):  # most ids are of languages, and are no text
        torch.manual_seed(seed)
        model = getattr(hf, f"{name}ForConditionalGeneration")(config).eval()
        forced = dict(forced_bos_token_id=language)
        texts = {generated(model, tokenizer, line, **forced) for line, _ in LINES}
        if len(texts) > 1:
            break
    else:
        pytest.fail("no model writes varied texts")
    model.save_pretrained(directory / "hub")
    languages = Languages(target=target)
    convert.convert(str(directory / "hub"), str(directory / "run"), languages=languages)
    return model, tokenizer, directory, language


def generated(model, tokenizer, line, **options):
    torch, _ = oracle()
    with torch.no_grad():
        ids = model.generate(
            **tokenizer([line], return_tensors="pt"), do_sample=False, num_beams=1,
            max_new_tokens=6, **options,
        )[0]  # fmt: skip
    return tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_the_loss_on_pairs_is_that_of_transformers(translator, tmp_path):
    model, tokenizer, directory, _ = translator
    torch, _ = oracle()
    total = count = 0
    for source, target in LINES:
        batch = tokenizer([source], text_target=[target], return_tensors="pt")
        with torch.no_grad():
            loss = model(**batch).loss
        size = batch["labels"].numel()
        total, count = total + float(loss) * size, count + size
    run = directory / "run"
    ours = scores(run, tmp_path, length=24)["eval/validation/loss"]
    np.testing.assert_allclose(ours, total / count, rtol=1e-5)


def test_texts_are_those_of_transformers_with_a_forced_language(translator):
    model, tokenizer, directory, language = translator
    torch, _ = oracle()
    lines = [source for source, _ in LINES]
    expected = [generated(model, tokenizer, x, forced_bos_token_id=language) for x in lines]
    found = generate.generate(directory / "run", lines, max_new_tokens=6)
    assert [answer["text"].strip() for (answer,) in found] == expected
    prefix = tokenizer(text_target="the cat")["input_ids"][:-1]
    assert prefix[0] == language
    begun = torch.tensor([[2, *prefix]])
    expected = [generated(model, tokenizer, x, decoder_input_ids=begun) for x in lines]
    found = generate.generate(directory / "run", lines, max_new_tokens=6, prefix="the cat")
    assert [answer["text"].strip() for (answer,) in found] == expected
    given = read_input(loaded_run.load(directory / "run"), lines[0], "the cat")
    assert given.fields["encoder_inputs"].tolist() == tokenizer(lines[0])["input_ids"]
    assert given.fields["inputs"].tolist()[:2] == [2, language]


def test_an_export_keeps_the_languages(translator, tmp_path):
    model, tokenizer, directory, language = translator
    convert.convert(str(directory / "run"), str(tmp_path / "out"))
    again = type(model).from_pretrained(tmp_path / "out").eval()
    assert again.generation_config.forced_bos_token_id == language
    line = LINES[1][0]
    expected = generated(model, tokenizer, line, forced_bos_token_id=language)
    assert generated(again, tokenizer, line) == expected
    convert.convert(str(tmp_path / "out"), str(tmp_path / "again"))
    before, after = (
        loaded_run.load(each).tokenizer for each in (directory / "run", tmp_path / "again")
    )
    assert after.source_affixes == before.source_affixes
    assert after.target_affixes == before.target_affixes == ((language,), (2,))
    assert after.encode(line).tolist() == before.encode(line).tolist()


def test_a_language_that_is_not_there_is_refused(translator, tmp_path):
    languages = Languages(source="xx_XX")
    with pytest.raises(ConfigError, match="--source_language=xx_XX is not a special token"):
        convert.convert(str(translator[2] / "hub"), str(tmp_path / "run"), languages=languages)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="--target_language is for imports"):
        convert.convert(
            str(translator[2] / "run"), str(tmp_path / "run"), languages=Languages(target="fr")
        )
