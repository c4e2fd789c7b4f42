"""Tokens that a published encoder-decoder forces at the start and at the end of its answers.

transformers counts them among max_new_tokens, so texts of a given maximum have the same length.
"""

import json
import shutil

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import convert
import generate
from checkpointing import loaded_run
from tests.pretrained.transformers_models import oracle

WORDS = ["<pad>", "<s>", "</s>", "[UNK]", "cat", "sat", "mat", "the", "dog", "ran", "on", "a"]
START, END = 1, 2
GENERATION = "generation_config.json"
SEEDS = dict(bart=0, marian=20)  # with these, some texts end by themselves and some do not
LINES = ["cat sat", "the dog ran on a mat", "a", "mat on mat on mat", "dog the cat"]
SIZES = dict(
    vocab_size=len(WORDS), d_model=16, init_std=0.7, encoder_layers=1, decoder_layers=1,
    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
    max_position_embeddings=32, pad_token_id=0, bos_token_id=START, eos_token_id=END,
    decoder_start_token_id=END,
)  # fmt: skip


def published(directory, kind, *, forced_bos, forced_eos, in_config=False):
    """A random model with its tokenizer, and their model as their files define it."""
    torch, hf = oracle()
    torch.manual_seed(SEEDS[kind])
    forced = dict(forced_bos_token_id=forced_bos, forced_eos_token_id=forced_eos)
    config_class, model_class = {
        "bart": (hf.BartConfig, hf.BartForConditionalGeneration),
        "marian": (hf.MarianConfig, hf.MarianMTModel),
    }[kind]
    model = model_class(config_class(**SIZES, forced_eos_token_id=None)).eval()
    model.save_pretrained(directory)
    path = directory / ("config.json" if in_config else GENERATION)
    path.write_text(json.dumps(json.loads(path.read_text()) | forced))
    if in_config:
        (directory / GENERATION).unlink()
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    frame = "<s> $A </s>" if kind == "bart" else "$A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=frame, special_tokens=[("<s>", START), ("</s>", END)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer, model_class.from_pretrained(directory).eval()


def written_by(model, tokenizer, line, **options):
    """Their text, and how many tokens it has with all special ones but the decoder's start."""
    torch, _ = oracle()
    source = torch.tensor([tokenizer.encode(line).ids])
    with torch.no_grad():
        ids = model.generate(source, do_sample=False, num_beams=1, **options)[0].tolist()
    return [WORDS[id] for id in ids if id > END], len(ids) - 1


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "forced_bos", "forced_eos", "in_config"),
    [
        ("bart", START, None, False),
        ("bart", START, END, False),
        ("bart", START, END, True),
        ("marian", None, END, False),
    ],
)
def test_forced_tokens_count_as_in_transformers(kind, forced_bos, forced_eos, in_config, tmp_path):
    given = dict(forced_bos=forced_bos, forced_eos=forced_eos, in_config=in_config)
    (tmp_path / "theirs").mkdir()
    tokenizer, model = published(tmp_path / "theirs", kind, **given)
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    again = type(model).from_pretrained(tmp_path / "out").eval()
    counts = set()
    for most in (1, 9):
        found = generate.generate(tmp_path / "in", LINES, max_new_tokens=most)
        for line, (answer,) in zip(LINES, found, strict=True):
            words, count = written_by(model, tokenizer, line, max_new_tokens=most)
            assert [w for w in answer["text"].split() if w != "<s>"] == words, (line, most)
            assert written_by(again, tokenizer, line, max_new_tokens=most) == (words, count)
            counts.add(count)
    assert 9 in counts and len(counts - {1, 9}), "all texts end alike, so little is compared"


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_no_token_is_forced_in_front_of_a_prefix(tmp_path):
    """transformers gets it as decoder_input_ids, which are not new tokens."""
    torch, _ = oracle()
    (tmp_path / "theirs").mkdir()
    tokenizer, model = published(tmp_path / "theirs", "bart", forced_bos=START, forced_eos=None)
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    found = generate.generate(tmp_path / "in", LINES, max_new_tokens=6, prefix="the dog")
    for line, (answer,) in zip(LINES, found, strict=True):
        prefix = torch.tensor([[END, START, WORDS.index("the"), WORDS.index("dog")]])
        options = dict(decoder_input_ids=prefix, max_new_tokens=6)
        assert answer["text"].split() == written_by(model, tokenizer, line, **options)[0]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_generation_config_replaces_the_settings_of_config(tmp_path):
    """As in transformers: what generation_config.json does not force, is not forced."""
    (tmp_path / "theirs").mkdir()
    forced = dict(forced_bos=START, forced_eos=END, in_config=True)
    published(tmp_path / "theirs", "bart", **forced)
    (tmp_path / "theirs" / GENERATION).write_text(json.dumps({"decoder_start_token_id": END}))
    _, hf = oracle()
    model = hf.BartForConditionalGeneration.from_pretrained(tmp_path / "theirs")
    assert model.generation_config.forced_bos_token_id is None
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "in"))
    tokenizer = loaded_run.load(tmp_path / "in").tokenizer
    assert (tokenizer.text_start_ids, tokenizer.forced_eos) == ((), False)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_words_of_one_token_are_banned_as_in_transformers(tmp_path):
    """Marian bans its padding, whose logit may be the largest."""
    (tmp_path / "theirs").mkdir()
    tokenizer, model = published(tmp_path / "theirs", "marian", forced_bos=None, forced_eos=None)
    free = generate_both(tmp_path, model, tokenizer)
    banned = [WORDS.index(word) for word in {word for words in free for word in words[:1]}]
    assert banned, "no text has a word"
    path = tmp_path / "theirs" / GENERATION
    settings = json.loads(path.read_text()) | {"bad_words_ids": [[id] for id in banned] + [[END]]}
    path.write_text(json.dumps(settings))
    model = type(model).from_pretrained(tmp_path / "theirs").eval()
    assert generate_both(tmp_path, model, tokenizer) != free


def generate_both(directory, model, tokenizer):
    """The words that both write for each line; they must be the same."""
    shutil.rmtree(directory / "in", ignore_errors=True)
    convert.convert(str(directory / "theirs"), str(directory / "in"))
    found = generate.generate(directory / "in", LINES, max_new_tokens=6)
    theirs = [written_by(model, tokenizer, line, max_new_tokens=6)[0] for line in LINES]
    ours = [answer["text"].split() for (answer,) in found]
    assert [[word for word in words if word != "<s>"] for words in ours] == theirs
    return theirs
