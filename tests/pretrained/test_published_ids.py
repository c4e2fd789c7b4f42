"""The ids that enter a published model are those of its own tokenizer, on the way in and out.

The decoders here are small and random; what is published about them is how their tokenizers frame
a text, which differs from file to file.
"""

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import convert
import generate
from checkpointing import loaded_run
from experiment.schema import ConfigError
from inference import output_text, predictors
from input_pipeline.tokenizers.published_files import open_tokenizer
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS, read_strings
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import oracle, randomize

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
# Ends in spaces, several lines, and names of special tokens are where tokenizers differ.
TEXTS = [
    "The capital of France is", "", "a", " a", "a ", "two  spaces", "line\nline\n", "\ttab",
    "naïve café", "漢字かな", "x = {'a': 1}", "1234567890", "UPPER lower", "…", "don't",
    "<|im_start|>user\nHello<|im_end|>\n", "a<s>b", "</s>", "a <|user|> b[PAD]c", "<new>\n a<new>b",
]  # fmt: skip
ROBERTAS = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
WORDS = ["<pad>", "<s>", "</s>", "[MASK]", "[UNK]", "[CLS]", "[SEP]", "cat", "sat", "mat"]


def ids_in(workdir, text):
    """The ids that would enter the model."""
    fields = predictors.make_predictor(loaded_run.load(workdir), {}, 1).prompt(text, "--prompt")
    return fields.get("encoder_inputs", fields["inputs"]).tolist()


def word_tokenizer(directory, processor=None, **config):
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / TOKENIZER_CONFIG).write_text(json.dumps(config))


BOS = processors.TemplateProcessing(
    single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)]
)


@pytest.mark.parametrize(
    ("name", "processor", "expected"),
    [
        ("llama", None, [7, 8]),
        ("llama", BOS, [1, 7, 8]),
        ("gpt2", None, [7, 8]),
        ("t5", None, [7, 8, 2]),
        ("bert_classifier", None, [5, 7, 8, 6]),
    ],
)
def test_a_text_is_framed_as_its_tokenizer_does(name, processor, expected, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / name, source)
    ids = dict(bos_token_id=1, eos_token_id=2)
    config = json.loads((source / CONFIG).read_text()) | ids
    (source / CONFIG).write_text(json.dumps(config))
    word_tokenizer(source, processor, bos_token="<s>", eos_token="</s>", chat_template="{{ x }}")
    convert.convert(str(source), str(tmp_path / "in"))
    assert ids_in(tmp_path / "in", "cat sat") == expected
    # Out it goes with the same frame, and its chat template.
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    written = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert written.encode("cat sat").ids == expected
    config = json.loads((tmp_path / "out" / TOKENIZER_CONFIG).read_text())
    assert config["chat_template"] == "{{ x }}"
    convert.convert(str(tmp_path / "out"), str(tmp_path / "again"))
    assert ids_in(tmp_path / "again", "cat sat") == expected


def test_a_pair_of_texts_is_framed_as_robertas(tmp_path):
    """Two separators between the texts, and no types of tokens."""
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "roberta_classifier", source)
    both = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    word_tokenizer(source, both, bos_token="<s>", eos_token="</s>")
    convert.convert(str(source), str(tmp_path / "in"))
    fields = predictors.make_predictor(loaded_run.load(tmp_path / "in"), {}, 1).prompt(
        "cat\tsat", ""
    )
    assert fields["inputs"].tolist() == [1, 7, 2, 2, 8, 2]
    assert fields["token_types"].tolist() == [0] * 6


def test_an_empty_prompt_begins_with_bos_if_nothing_else_does(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    word_tokenizer(source, bos_token="<s>", eos_token="</s>")
    convert.convert(str(source), str(tmp_path / "in"))
    assert ids_in(tmp_path / "in", "") == [1]


def test_a_published_directory_is_no_run(tmp_path):
    with pytest.raises(
        ConfigError, match=r"is a published model, not a run; .*convert\.py --from="
    ):
        generate.generate(FIXTURES / "gpt2", ["cat"])


def test_the_log_names_a_tokenizer_that_replaces_the_published_one(tmp_path, caplog):
    source, other = tmp_path / "source", tmp_path / "other"
    shutil.copytree(FIXTURES / "gpt2", source)
    other.mkdir()
    own, given = source / "tokenizer.json", other / "tokenizer.json"
    word_tokenizer(source)
    word_tokenizer(other)

    def lines(tokenizer):
        caplog.clear()
        shutil.rmtree(tmp_path / "in", ignore_errors=True)
        convert.convert(str(source), str(tmp_path / "in"), tokenizer=str(tokenizer))
        return [message for message in caplog.messages if "--tokenizer" in message]

    taken = f"--tokenizer={given} is taken instead of {own}"
    assert lines("") == lines(own) == lines(source) == lines("none") == []
    assert lines(given) == lines(other) == [f"{taken}; they have the same 10 ids"]
    content = given.read_text()
    given.write_text(content.replace('"cat"', '"dog"').replace('"sat"', '"ran"'))
    (line,) = lines(given)
    assert line.startswith(f"{taken}; 2 of 10 ids stand for other text")
    assert (
        loaded_run.load(tmp_path / "in").tokenizer.pieces[7] == "dog"
    )  # the one asked for is used
    own.write_text("{}")
    assert lines(given) == [f"{taken}, which cannot be read"]
    # More ids than the model has cannot be its own.
    more = {f"w{number}": number for number in range(10, 60)}
    layout = json.loads(content)
    layout["model"]["vocab"] |= more
    given.write_text(json.dumps(layout))
    with pytest.raises(
        ConfigError, match=r"has 60 ids, but .* 23; .* leave it out, to use"
    ) as refused:
        lines(given)
    assert str(given) in str(refused.value) and str(own) in str(refused.value)


def test_entries_of_added_tokens_may_be_sparse(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    entries = {"3": {"content": "[MASK]"}, "4": {}, "5": "[CLS]"}
    for number, table in enumerate([entries, None]):
        word_tokenizer(source, added_tokens_decoder=table)
        convert.convert(str(source), str(tmp_path / f"in{number}"))
        assert ids_in(tmp_path / f"in{number}", "cat sat") == [7, 8]


def test_an_end_may_have_no_token(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    word_tokenizer(source)
    config = json.loads((source / CONFIG).read_text())
    beyond = config["vocab_size"] - 1
    assert beyond > len(WORDS)
    (source / CONFIG).write_text(json.dumps(config | dict(eos_token_id=beyond)))
    said = convert.convert(str(source), str(tmp_path / "in"))
    assert said.endswith(f"eos is the id {beyond}")
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["eos_token_id"] == beyond


def test_a_source_may_have_no_end(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "marian", source)
    word_tokenizer(source)
    convert.convert(str(source), str(tmp_path / "in"), source_eos=False)
    assert ids_in(tmp_path / "in", "cat sat") == [7, 8]
    convert.convert(str(source), str(tmp_path / "usual"))
    eos = loaded_run.load(tmp_path / "usual").tokenizer.eos_id
    assert ids_in(tmp_path / "usual", "cat sat") == [7, 8, eos]
    with pytest.raises(ConfigError, match="--nosource_eos is for encoder-decoders"):
        shutil.copy(source / "tokenizer.json", tmp_path / "tokenizer.json")
        words = str(tmp_path / "tokenizer.json")
        convert.convert(
            str(FIXTURES / "gpt2"), str(tmp_path / "x"), tokenizer=words, source_eos=False
        )


def test_a_model_without_a_tokenizer_takes_ids(tmp_path):
    for name in ("t5", "gpt2"):
        convert.convert(str(FIXTURES / name), str(tmp_path / name), tokenizer="none")
        with pytest.raises(ConfigError, match="came without a tokenizer: give ids"):
            generate.generate(tmp_path / name, ["7 8"])
        ((answer,),) = generate.generate(tmp_path / name, ["7 8"], ids=True, max_new_tokens=3)
        ids = [int(id) for id in answer["text"].split()]
        assert len(ids) in (answer["tokens"], answer["tokens"] - 1) and ids  # but for eos
        assert all(0 <= id < 23 for id in ids)
    with pytest.raises(ConfigError, match="--stop is text, and --ids has none"):
        generate.generate(tmp_path / "gpt2", ["7"], ids=True, stop=("a",))


def test_no_id_is_lost_without_an_eos(tmp_path):
    """The end that its config names is beyond the vocabulary, so nothing ends an answer."""
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "gpt2", source)
    ids = dict(bos_token_id=50256, eos_token_id=50256)
    config = json.loads((source / CONFIG).read_text()) | ids
    (source / CONFIG).write_text(json.dumps(config))
    convert.convert(str(source), str(tmp_path / "in"), tokenizer="none")
    options = dict(method="sample", temperature=3.0, max_new_tokens=6, num_outputs=16)
    (answers,) = generate.generate(tmp_path / "in", ["5"], ids=True, **options)
    found = [answer["text"].split() for answer in answers]
    assert [len(ids) for ids in found] == [6] * 16
    assert any("0" in ids for ids in found)


def test_several_ids_may_end_an_answer(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "llama", source)
    config = json.loads((source / CONFIG).read_text()) | dict(eos_token_id=[2, 8])
    (source / CONFIG).write_text(json.dumps(config))
    (source / "generation_config.json").write_text('{"eos_token_id": [9, 2]}')
    # Of several ends, eos is the one that the tokenizer calls so.
    word_tokenizer(source, bos_token="<s>", eos_token="mat")
    convert.convert(str(source), str(tmp_path / "by_name"))
    tokenizer = loaded_run.load(tmp_path / "by_name").tokenizer
    assert (tokenizer.eos_id, tokenizer.more_eos_ids) == (9, (2,))
    word_tokenizer(source, bos_token="<s>", eos_token="</s>")
    line = convert.convert(str(source), str(tmp_path / "in"))
    assert line == "llama as task.objective=causal_lm; a text is read as TEXT; eos is </s> or mat"
    tokenizer = loaded_run.load(tmp_path / "in").tokenizer
    assert (tokenizer.eos_id, tokenizer.more_eos_ids) == (2, (9,))
    assert output_text.up_to_end(np.array([7, 9, 7, 2]), tokenizer).tolist() == [7, 9]
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    for name in (CONFIG, "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == [2, 9]


@pytest.mark.parametrize(
    "settings",
    [
        {"sentence_bert_config.json": dict(max_seq_length=5, do_lower_case=False)},
        {TOKENIZER_CONFIG: dict(model_max_length=5)},  # as newer versions have it
    ],
)
def test_a_sentence_encoder_reads_as_much_as_its_pipeline(settings, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "bert_base", source)
    word_tokenizer(source)
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / CONFIG).write_text(json.dumps({"pooling_mode": "mean"}))
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"))
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    for name, values in settings.items():
        (source / name).write_text(json.dumps(values))
    convert.convert(str(source), str(tmp_path / "in"))
    assert loaded_run.load(tmp_path / "in").experiment.data.length == 5
    assert ids_in(tmp_path / "in", "cat sat mat cat sat mat") == [5, 7, 8, 9, 6]
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "sentence_bert_config.json").read_text())
    assert written["max_seq_length"] == 5


def byte_level(path, *, processor=None, special=("<|endoftext|>",)):
    """A tokenizer.json as published decoders have them, from GPT-2's fixture."""
    vocab = json.loads(PATHS["gpt2"].read_text())
    vocab.pop("<|endoftext|>")
    merges = [
        tuple(line.split(" "))
        for line in PATHS["gpt2"].with_name("vocab.bpe").read_text().splitlines()[1:]
    ]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.post_processor = processor or processors.ByteLevel(trim_offsets=False)
    tokenizer.save(str(path))


def gpt2_files(directory, first=()):
    pieces = json.loads(PATHS["gpt2"].read_text())
    vocab = {name: id for id, name in enumerate([*first, *sorted(pieces, key=pieces.get)])}
    (directory / "vocab.json").write_text(json.dumps(vocab))
    shutil.copy(PATHS["gpt2"].with_name("vocab.bpe"), directory / "merges.txt")


def write_files(case, directory):
    """The tokenizer of one case, and the model_type that it comes with."""
    config, kind = {}, "llama"
    match case:
        case "gpt2" | "gpt2_bos" | "gpt2_prefix_space":
            kind, key = "gpt2", case.removeprefix("gpt2_")
            gpt2_files(directory)
            flags = dict(bos="add_bos_token", prefix_space="add_prefix_space")
            config = {flags[key]: True} if key in flags else {}
        case "gpt2_added":  # as transformers 4 wrote them
            kind, added = "gpt2", ["<|im_start|>", "<|im_end|>", "<new>", "[PAD]"]
            gpt2_files(directory)
            ids = {name: 701 + number for number, name in enumerate(added)}
            (directory / "added_tokens.json").write_text(json.dumps(ids))
            roles = dict(bos_token="<|endoftext|>", eos_token=added[1], pad_token=added[3])
            roles |= dict(additional_special_tokens=added[:2], unk_token="<|endoftext|>")
            (directory / "special_tokens_map.json").write_text(json.dumps(roles))
        case "gpt2_json":
            kind = "gpt2"
            byte_level(directory / "tokenizer.json")
        case "smollm":
            special = ("<|im_start|>", "<|im_end|>")
            byte_level(directory / "tokenizer.json", special=special)
            config = dict(
                tokenizer_class="GPT2Tokenizer", add_bos_token=False, bos_token=special[0],
                eos_token=special[1], pad_token=special[1], unk_token=special[0],
                chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
            )  # fmt: skip
        case "llama3":
            begin = ("<|begin_of_text|>", 700)
            processor = processors.TemplateProcessing(
                single=f"{begin[0]} $A", pair=f"{begin[0]} $A {begin[0]}:1 $B:1",
                special_tokens=[begin],
            )  # fmt: skip
            both = processors.Sequence([processors.ByteLevel(trim_offsets=False), processor])
            special = ("<|begin_of_text|>", "<|end_of_text|>")
            byte_level(directory / "tokenizer.json", processor=both, special=special)
            config = dict(
                tokenizer_class="PreTrainedTokenizerFast",
                bos_token=special[0],
                eos_token=special[1],
            )
        case "llama_bos" | "llama_eos" | "llama_bare":
            shutil.copy(PATHS["llama"], directory / "tokenizer.model")
            config = dict(tokenizer_class="LlamaTokenizer")
            config |= {} if case == "llama_bare" else dict(add_bos_token=True)
            config |= dict(add_eos_token=True) if case == "llama_eos" else {}
        case "llama_table":
            shutil.copy(PATHS["llama"], directory / "tokenizer.model")
            first = len(open_tokenizer(PATHS["llama"]).pieces)
            flags = dict(lstrip=False, single_word=False, normalized=False)
            entries = [
                dict(content="<|user|>", special=True, rstrip=True, **flags),
                dict(content="<new>", special=False, rstrip=False, **flags),
                dict(content="<|im_end|>", special=True, rstrip=False, **flags),
            ]
            table = {str(first + number): entry for number, entry in enumerate(entries)}
            config = dict(
                tokenizer_class="LlamaTokenizer", add_bos_token=True, eos_token="<|im_end|>",
                added_tokens_decoder=table,
            )  # fmt: skip
        case "mpnet":
            kind = "mpnet"
            pieces = PATHS["bert_cased"].read_text().splitlines()
            special = {"[PAD]": "<s>", "[unused0]": "<pad>", "[CLS]": "</s>", "[MASK]": "<mask>"}
            vocab = {special.get(piece, piece): id for id, piece in enumerate(pieces)}
            _, hf = oracle()
            hf.MPNetTokenizer(vocab=vocab, do_lower_case=False).save_pretrained(directory)
        case "bert" | "bert_added" | "electra":
            kind = "electra" if case == "electra" else "bert"
            shutil.copy(PATHS["bert_cased"], directory / "vocab.txt")
            config = dict(do_lower_case=False)
            if case == "bert_added":
                config |= dict(
                    additional_special_tokens=["<|user|>", "<new>"], pad_token="<|user|>"
                )
        case "roberta" | "bart":
            kind = case
            gpt2_files(directory, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
        case "xlm-roberta" | "xlm-roberta_json" | "camembert" | "camembert_json":
            kind, _, is_json = case.partition("_")
            fairseq_files(directory, kind, is_json=bool(is_json))
        case "t5":
            kind = "t5"
            shutil.copy(PATHS["t5"], directory / "spiece.model")
    if config:
        (directory / TOKENIZER_CONFIG).write_text(json.dumps(config))
    return kind


def fairseq_files(directory, kind, *, is_json):
    """The pieces of T5's fixture in the order of fairseq's files."""
    _, hf = oracle()
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(PATHS["t5"].read_bytes())
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces[3:]]
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *pieces]
    del proto.pieces[:]
    for text, score, type in pieces:
        proto.pieces.add(piece=text, score=score, type=type)
    for name, id in dict(unk=0, bos=1, eos=2, pad=-1).items():
        setattr(proto.trainer_spec, f"{name}_id", id)
    (directory / "sentencepiece.bpe.model").write_bytes(proto.SerializeToString())
    (directory / CONFIG).write_text(json.dumps({"model_type": kind}))
    if is_json:
        hf.AutoTokenizer.from_pretrained(directory).save_pretrained(directory)
        (directory / "sentencepiece.bpe.model").unlink()


def write_model(directory, kind):
    """A random model of the kind, with the ids and the size that its tokenizer has."""
    _, hf = oracle()
    (directory / CONFIG).write_text(json.dumps({"model_type": kind}))
    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    special = dict(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    sizes = dict(vocab_size=len(tokenizer), num_hidden_layers=2)
    heads = dict(num_attention_heads=2, hidden_size=16, intermediate_size=32)
    longest = dict(max_position_embeddings=256)
    both = {f"{s}_{k}": v for s in ("encoder", "decoder") for k, v in
            dict(layers=1, attention_heads=2, ffn_dim=32).items()}  # fmt: skip
    model = {
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=len(tokenizer), n_embd=16, n_head=2, n_layer=2, n_positions=256,
                **special,
            )
        ),
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**sizes, **heads, **longest, num_key_value_heads=1, **special)
        ),
        "electra": lambda: hf.ElectraForMaskedLM(
            hf.ElectraConfig(**sizes, **heads, **longest, embedding_size=8)
        ),
        "mpnet": lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**sizes, **heads, **longest)),
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**sizes, **heads, **longest)),
        **{
            name: lambda prefix=prefix: getattr(hf, f"{prefix}ForMaskedLM")(
                getattr(hf, f"{prefix}Config")(
                    **sizes, **heads, **longest, type_vocab_size=1, **special
                )
            )
            for name, prefix in ROBERTAS.items()
        },
        "bart": lambda: hf.BartForConditionalGeneration(
            hf.BartConfig(
                vocab_size=len(tokenizer), d_model=16, **both, **longest, **special,
                decoder_start_token_id=tokenizer.eos_token_id,
            )
        ),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=len(tokenizer), d_model=16, d_kv=8, num_heads=2, d_ff=32, num_layers=1,
                pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
            )
        ),
    }[kind]()  # fmt: skip
    model = randomize(model, 5)
    model.save_pretrained(directory)
    return tokenizer, model


DECODERS = [
    "gpt2", "gpt2_bos", "gpt2_prefix_space", "gpt2_json", "smollm", "llama3", "llama_bos",
    "llama_eos", "llama_bare", "gpt2_added", "llama_table",
]  # fmt: skip
OTHERS = [
    "bert", "bert_added", "electra", "mpnet", "roberta", "bart", "t5", "xlm-roberta",
    "xlm-roberta_json", "camembert", "camembert_json",
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", DECODERS)
def test_a_decoder_reads_and_writes_the_ids_of_transformers(case, tmp_path):
    torch, _ = oracle()
    source = tmp_path / "source"
    source.mkdir()
    theirs, model = write_model(source, write_files(case, source))
    convert.convert(str(source), str(tmp_path / "in"))
    texts = [text for text in [*TEXTS, *read_strings()[:40:10]] if theirs(text)["input_ids"]]
    assert len(texts) >= 20
    expected = [theirs(text)["input_ids"] for text in texts]
    loaded = loaded_run.load(tmp_path / "in")
    predictor = predictors.make_predictor(loaded, dict(max_new_tokens=32), 1)
    asked = [predictor.prompt(text, "")["inputs"].tolist() for text in texts]
    assert asked == expected

    # Rows of several lengths are several compilations; two of them are enough to be sure.
    chosen = [0, 15]
    lines = [texts[number] for number in chosen]
    found = generate.generate(tmp_path / "in", lines, max_new_tokens=32)
    in_ids = [" ".join(map(str, expected[number])) for number in chosen]
    found_ids = generate.generate(tmp_path / "in", in_ids, max_new_tokens=32, ids=True)
    for number, (output,), (as_ids,) in zip(chosen, found, found_ids, strict=True):
        prompt = torch.tensor([expected[number]])
        with torch.no_grad():
            written = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=32, do_sample=False
            )
        tokens = written[0, prompt.shape[1] :].numpy()
        assert output["tokens"] == len(tokens)
        assert len(tokens) > 8 or case == "llama_eos", "its prompts end in eos, and so may it"
        eos = loaded.tokenizer.eos_id
        without_end = [id for id in tokens.tolist() if id not in (eos, loaded.tokenizer.pad_id)]
        assert as_ids["text"].split() == list(map(str, without_end))
        assert output["text"] == as_text(loaded.tokenizer, prompt[0].numpy(), tokens)
    round_trip(tmp_path, theirs, texts)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_any_eos_id_ends_an_answer_as_in_transformers(tmp_path):
    torch, hf = oracle()
    source = tmp_path / "source"
    source.mkdir()
    theirs, model = write_model(source, write_files("smollm", source))
    prompt = theirs(TEXTS[0], return_tensors="pt")
    options = dict(max_new_tokens=32, do_sample=False)
    with torch.no_grad():
        written = model.generate(**prompt, **options)[0, prompt["input_ids"].shape[1] :]
    ends = [theirs.eos_token_id, int(written[5])]
    hf.GenerationConfig(eos_token_id=ends).save_pretrained(source)
    model = hf.LlamaForCausalLM.from_pretrained(source).eval()
    with torch.no_grad():
        shorter = model.generate(**prompt, **options)[0, prompt["input_ids"].shape[1] :]
    assert len(shorter) <= 6 < len(written)
    convert.convert(str(source), str(tmp_path / "in"))
    ((answer,),) = generate.generate(tmp_path / "in", TEXTS[:1], max_new_tokens=32)
    assert answer["tokens"] == len(shorter)


def as_text(tokenizer, prompt, tokens):
    before, both = tokenizer.decode(prompt), tokenizer.decode(np.concatenate([prompt, tokens]))
    return both[len(before) :] if both.startswith(before) else tokenizer.decode(tokens)


def round_trip(tmp_path, theirs, texts):
    """The export gives transformers the same ids, for one text and for two."""
    _, hf = oracle()
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    again = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts:
        assert again(text)["input_ids"] == theirs(text)["input_ids"], text
        assert again(text, "a b")["input_ids"] == theirs(text, "a b")["input_ids"], text
    assert again.chat_template == theirs.chat_template


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", OTHERS)
def test_others_read_the_ids_of_transformers(case, tmp_path):
    oracle()
    source = tmp_path / "source"
    source.mkdir()
    theirs, _ = write_model(source, write_files(case, source))
    convert.convert(str(source), str(tmp_path / "in"))
    texts = [*TEXTS, *read_strings()[:40:10]]
    if case not in ("bart", "t5"):
        texts = [text + theirs.mask_token for text in texts]
    for text in texts:
        assert ids_in(tmp_path / "in", text) == theirs(text)["input_ids"], repr(text)
    round_trip(tmp_path, theirs, texts)


def mask_entry(content, **strips):
    return dict(
        dict(content=content, lstrip=False, rstrip=False, normalized=False, single_word=False),
        special=True, __type="AddedToken", **strips,
    )  # fmt: skip


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("says", ["nothing", "tokenizer.json", "role", "table"])
@pytest.mark.parametrize("strips", [dict(lstrip=True), {}, dict(lstrip=True, rstrip=True)])
@pytest.mark.parametrize("case", ["bert", "roberta"])
def test_spaces_beside_a_mask_are_read_as_its_files_say(case, strips, says, tmp_path):
    """RoBERTa's mask takes in the space before it, BERT's does not: the added token has it."""
    _, hf = oracle()
    source = tmp_path / "source"
    source.mkdir()
    theirs, _ = write_model(source, write_files(case, source))
    mask, mask_id = theirs.mask_token, theirs.mask_token_id
    path = source / TOKENIZER_CONFIG
    config = json.loads(path.read_text()) if path.exists() else {}
    if says == "tokenizer.json":
        layout = json.loads(theirs.backend_tokenizer.to_str())
        (token,) = [each for each in layout["added_tokens"] if each["content"] == mask]
        token.update(strips)
        (source / "tokenizer.json").write_text(json.dumps(layout))
    elif says == "role":
        config["mask_token"] = mask_entry(mask, **strips)
    elif says == "table":
        config["added_tokens_decoder"] = {str(mask_id): mask_entry(mask, **strips)}
    path.write_text(json.dumps(config))
    theirs = hf.AutoTokenizer.from_pretrained(source)
    convert.convert(str(source), str(tmp_path / "in"))
    prompt = predictors.make_predictor(loaded_run.load(tmp_path / "in"), {}, 1).prompt
    texts = ["the {} was", "the{} was", "the {}was", "{} was {}", "the  {}  was", " {}", "a{}{} {}"]
    expected = [theirs(text.replace("{}", mask))["input_ids"] for text in texts]
    for name in (mask, "[MASK]"):
        found = [prompt(text.replace("{}", name), "")["inputs"].tolist() for text in texts]
        assert found == expected
    if case == "roberta" and says != "nothing":
        assert (expected[0] == expected[1]) == bool(strips)
