"""Every key of every config, once, with its default and what it means.

An experiment's file starts from these and changes what it needs; nothing else supplies
defaults. Unless a comment says otherwise, 0 or "" switches a thing off or leaves it to be
worked out from the other keys or the data.
"""

import ml_collections


def get_config(arg=None):
    del arg
    config = ml_collections.ConfigDict()

    # The run
    config.seed = 0
    config.steps = 1000
    # Minutes from the first step on, over all resumptions; then, or after `steps`, the run ends as
    # if done, its learning rate at the end of its decay. 0: no limit
    config.time_limit = 0.0
    config.log_every = 50  # steps between log lines
    config.init_from = ""  # another run's workdir, or WORKDIR:STEP, to take parameters from
    config.profile_steps = (0, 0)  # first and last step of a profiler trace
    config.wandb_project = ""  # needs the extra `wandb`
    # Where compiled programs are kept for the next time; "": JAX_COMPILATION_CACHE_DIR, or
    # ~/.cache/backbone/programs if that is not set; off: nowhere
    config.compilation_cache = ""

    config.model = ml_collections.ConfigDict(
        dict(
            # The kind of network
            family="encoder_decoder",  # encoder | decoder | encoder_decoder
            input="tokens",  # tokens | patches (images cut into squares)
            # Sizes
            vocab_size=0,  # V; 0: the tokenizer's size
            width=128,  # D
            encoder_layers=2,
            decoder_layers=2,
            heads=4,  # H
            kv_heads=0,  # G: heads of keys and values; 0: as many as query heads
            head_size=0,  # K; 0: width / heads
            feed_forward=512,  # F
            max_length=512,  # the longest sequence that absolute positions can address
            # Embeddings
            # sinusoidal | learned | rope | alibi | t5_bias | transformer_xl | none
            position="sinusoidal",
            # Amplitude of the sinusoids; 0: the size that token embeddings have at first, so that
            # neither swamps the other. That is 1 with embedding_scale=True, as in the 2017 paper
            sinusoidal_scale=0.0,
            rope_theta=10_000.0,
            # How rope reaches beyond the length it was first trained at: default | linear (all
            # angles divided by rope_factor) | ntk (rope_theta times rope_factor ** (K / (K - 2)):
            # the slowest divided by it, the fastest left) | llama3 (only those that turn slowly)
            rope_scaling="default",
            rope_factor=1.0,
            rope_low_frequency=1.0,  # llama3: fewer turns in the original length are scaled,
            rope_high_frequency=4.0,  # more are not, those between in part
            rope_original_length=8192,  # llama3 only
            relative_buckets=32,  # t5_bias only
            relative_max_distance=128,  # t5_bias only
            token_types=0,  # BERT's segment embeddings: how many
            embedding_scale=False,  # multiply token embeddings by sqrt(width)
            embedding_norm=False,  # normalise the sum of the embeddings (BERT)
            share_embeddings=True,  # encoder_decoder: one token table for both sides
            tie_output=True,  # the output layer is the transposed token table
            output_scale=False,  # multiply the final hidden state by width ** -0.5 (T5 v1.0)
            output_bias=False,
            # Blocks
            norm="layernorm",  # layernorm | rmsnorm
            norm_placement="pre",  # pre | post
            norm_epsilon=1e-6,
            # relu | gelu | gelu_tanh | silu; gated: reglu | geglu | geglu_tanh | swiglu
            activation="relu",
            bias=True,  # in dense layers and layernorm
            # dot | flash | local | longformer | performer | linear | chunked | hierarchical |
            # recurrent; or a pattern that the layers repeat: local,local,dot. See docs/attention.md
            attention="dot",
            attention_scale=True,  # divide scores by sqrt(head_size); T5 does not
            attention_window=256,  # local, longformer: keys less than so many positions away
            attention_dilation=1,  # longformer: every n-th key, from n times as far
            # longformer: first (of each text) | separators | question (all up to the first of them)
            global_tokens="first",
            global_limit=64,  # longformer: more of them in a row are right too, but slow
            separator_id=0,  # the token that separates texts; 0: the tokenizer's
            attention_chunk=256,  # chunked, hierarchical, recurrent: positions in a chunk
            attention_overlap=64,  # chunked: positions at its sides that are seen besides
            attention_memory=256,  # recurrent: positions before the chunk that are seen besides
            attention_features=256,  # performer: random features
            attention_kernel="softmax",  # performer: softmax | relu
            # performer: steps of training between draws of random features; 0: always those of
            # evaluation. Many steps with one draw fit the model to it; see docs/attention.md
            attention_redraw=0,
            # Images
            image_size=0,  # 0: the data's
            image_channels=0,  # 0: the data's
            patch_size=16,
            class_token=True,
            # Classification
            num_classes=0,  # 0: the data's
            pooling="first",  # first | last | mean: which hidden state is classified
            pooler=False,  # a dense layer before the classifier (BERT)
            pooler_activation="tanh",  # tanh | relu: of the pooler (relu: DistilBERT)
            # Dropout rates
            dropout_embedding=0.0,
            dropout_attention=0.0,
            dropout_residual=0.0,
            dropout_feed_forward=0.0,
            # How it is computed
            init_std=0.0,  # of all weights; 0: variance scaled by fan-in
            dtype="float32",  # float32 | bfloat16: activations
            param_dtype="float32",
            # Products with kernels of the blocks: float (in dtype) | int8 | fp8. Parameters stay as
            # they are. 8 bits need pip install -e '.[quantized]'; see docs/platforms.md
            matmul="float",
            # What the backward pass computes again: none | dots (all but products with matrices of
            # parameters) | save_attention (all but what attention gave) | full
            remat="none",
            # Layers per step of the scan over layers; 0: all on CPU without remat, 1 elsewhere
            unroll=0,
        )
    )

    config.data = ml_collections.ConfigDict(
        dict(
            # Embedded: dates | pydoc | names | digits | listops. Your own: text_files |
            # translation_files | labelled_text_files | image_files | text_to_text_files.
            # Or tfds | huggingface.
            source="dates",
            path="",  # your own files: a directory, a glob or a file; see docs/data.md
            name="",  # tfds: such as wmt17_translate/de-en; huggingface: nyu-mll/glue:sst2
            version="",  # tfds: such as 1.0.0; huggingface: a revision; "": the newest at hand
            kind="",  # tfds and huggingface: pairs | documents | labelled | images
            train_split="train",  # your own files: train.tsv, train-00000-of-00004.tsv, train/...
            eval_split="validation",
            eval_share=0.1,  # your own text: held out of it, if its files name no splits
            source_language="",  # pairs: a file's ending, or the field of the data set
            target_language="",
            text_field="text",  # the data set's names for what an example holds
            text_pair_field="",
            label_field="label",
            max_bad_records=0,  # of each split: records to skip and log that cannot be used
            # Several sources in one: (("text_files:books/*.txt", 3.0), ("tfds:lm1b", 1.0)), or of
            # text_to_text_files the tasks, (("summarize", 2.0), ("translate", 1.0)). The numbers
            # are shares of the rows; tasks without them have the share of their size.
            mixture=(),
            # What only one source knows, such as --config.data.options.depth=5 of
            # configs/listops.py; the source's own file in input_pipeline/sources/ lists its options
            options={},
            # byte; or bpe | wordpiece | unigram | word, trained on the data; or a file:
            # tokenizer.json, a SentencePiece .model, BERT's vocab.txt, GPT-2's encoder.json
            # (vocab.bpe beside it)
            tokenizer="byte",
            tokenizer_size=8192,  # ids of a tokenizer that is trained
            lowercase=False,  # a tokenizer that is trained takes upper case for lower
            cache_dir="",  # where prepared text is kept; "": ~/.cache/backbone
            batch_size=64,  # rows in a step, over all processes
            length=64,  # T: columns of the decoder's (or only) side
            encoder_length=64,  # columns of the encoder's side in encoder_decoder models
            packing=False,  # several examples to a row, each seeing itself alone
            buckets=(),  # (16, 32): batches of like lengths, padded to these rather than to length
            bucket_count=0,  # choose so many buckets from the lengths of the training examples
            over_long="truncate",  # truncate | split | drop: training examples that do not fit
            # Images: 0 to 1 in each channel, less image_mean, divided by image_std
            image_size=0,  # images are resized to this square; 0: all are of one square size
            image_fit="crop",  # resize the shorter side and crop the centre | stretch: both sides
            image_resample="bicubic",  # | nearest | box | bilinear | hamming | lanczos
            image_mean=(),  # one number, or one for each channel; (): 0
            image_std=(),  # one number, or one for each channel; (): 1
            # Augmentation of training images, in this order; see input_pipeline/augmentation.py
            crop_padding=0,  # pixels of black around the image, a window of its size is cut out
            crop_scale=0.0,  # smallest share of the image's area to be cut out and enlarged
            flip=False,  # left and right exchanged, with probability 1/2
            random_erasing=0.0,  # probability that noise replaces a rectangle of the image
            mixup=0.0,  # alpha of the Beta distribution by which two images are blended
            # Read ahead
            prefetch=4,  # batches prepared ahead
            workers=0,  # processes that prepare them; 0: a thread
        )
    )

    config.task = ml_collections.ConfigDict(
        dict(
            # seq2seq | causal_lm | prefix_lm | masked_lm | span_corruption |
            # classify_text | classify_images | embed (published models alone: nothing to train)
            objective="seq2seq",
            label_smoothing=0.0,
            z_loss=0.0,
            noise_rate=0.15,  # share of tokens hidden by masked_lm and span_corruption
            mean_span=3.0,  # mean length of span_corruption's spans
            whole_words=False,  # masked_lm: hide all tokens of a word or none
            auxiliary_masked_lm=0.0,  # classify_text: weight of a masked_lm loss beside it
            next_sentence=False,  # masked_lm: also tell whether the second part follows the first
            # Distillation: a run's workdir, or WORKDIR:STEP, whose answers are soft targets
            teacher="",
            teacher_weight=0.5,  # of the soft targets' loss; that of the data has the rest
            teacher_temperature=2.0,  # both models' logits are divided by it
            embedding="pooled",  # embed: pooled, as for classes; or first | mean hidden state
            normalize=False,  # embed: divide the embedding by its length
        )
    )

    config.optimizer = ml_collections.ConfigDict(
        dict(
            name="adamw",  # adam | adamw | adafactor | lion | muon | sgd
            schedule="cosine",  # constant | linear | cosine | stable_decay | inverse_sqrt
            learning_rate=1e-3,  # the peak; inverse_sqrt: factor on the 2017 formula
            warmup_steps=100,
            decay_steps=0,  # where decay ends; 0: at the last step
            decay_fraction=0.2,  # stable_decay: share of the steps spent decaying
            final_fraction=0.0,  # of the peak, where decay ends
            beta1=0.9,  # also momentum of sgd and muon
            beta2=0.999,
            epsilon=1e-8,
            weight_decay=0.0,  # adamw, adafactor, lion, muon
            decay_embeddings=False,  # norms and biases never decay
            clip_norm=1.0,  # global gradient norm; 0: no clipping
            accumulate=1,  # micro-batches in a step
            ema_decay=0.0,  # evaluate an exponential moving average of the parameters
            # Parameters of bfloat16 after an update: nearest (small ones are lost) | stochastic (up
            # or down at random, right on average) | master (a float32 copy beside the moments)
            rounding="nearest",
            offload=False,  # keep the optimizer's state in the host's memory between updates
        )
    )

    # Patterns are regular expressions over whole names of parameters, such as
    # backbone/encoder/blocks/self_attention/query/kernel; a run's log lists all names.
    config.finetune = ml_collections.ConfigDict(
        dict(
            # Adapters of low rank beside kernels of the blocks; init_from's parameters stay as
            # they are, and are read from there again whenever the run is resumed or used
            lora_rank=0,
            lora_alpha=16.0,  # an adapter counts lora_alpha / lora_rank times
            lora_targets=".*/(query|value)/kernel",
            # Trained in full beside the adapters, as is all that init_from does not have
            lora_also_train="",
            freeze="",  # parameters that are not trained; without adapters
            layer_decay=1.0,  # of the learning rate from layer to layer, down from the heads
            head_scale=1.0,  # of the learning rate of all that is not under backbone/
            # The token tables of init_from are fitted to another tokenizer: rows of tokens that
            # both have are kept, new ones begin as the mean of the old
            resize_vocabulary=False,
        )
    )

    # Sizes of the mesh axes; -1: the devices that are left. Their product is the device count.
    config.mesh = ml_collections.ConfigDict(dict(data=-1, fsdp=1, sequence=1, tensor=1))

    config.checkpoint = ml_collections.ConfigDict(
        dict(
            every=500,  # steps; the last step is always saved; 0: only that
            keep=2,  # newest checkpoints to keep
            # Steps that may be made while a checkpoint is being written, which is what a kill may
            # cost beyond `every`; 0: the run waits until it is on the disk
            overlap=0,
            best_metric="",  # also keep the best by this metric, e.g. eval/dates/exact_match
            best_mode="max",  # max | min
        )
    )

    # What a run does when something goes wrong; see docs/reliability.md
    config.failure = ml_collections.ConfigDict(
        dict(
            # stop | skip: what follows a loss or a gradient that is no number
            nonfinite="stop",
            # ignore | skip | rollback (to a checkpoint, and on with other batches): what follows a
            # loss above spike_factor times the median of the last spike_window
            spike="ignore",
            spike_factor=10.0,
            spike_window=64,
            rollback_steps=100,  # how far to go back at least
            rollback_batches=200,  # how many to leave out from there; at least to the spike's own
            limit=10,  # of steps skipped in a row, and of rollbacks: then the run ends
            # Longer without a step, a save, a batch of evaluation: all stacks are logged; 0: never
            watchdog_seconds=0.0,
            watchdog_ends=False,  # and the run ended
            heartbeat_seconds=100,  # of several processes: one silent for so long ends the job
        )
    )

    config.eval = ml_collections.ConfigDict(
        dict(
            every=500,  # steps; always after the last; 0: only then
            batch_size=256,
            # At most this many batches of each held-out set: a fixed random sample; 0: all of it
            batches=0,
            # The run ends after so many evaluations in a row that are not the best so far, by
            # checkpoint.best_metric, or else the first set's accuracy (classes) or loss; 0: never
            patience=0,
            # Besides those that go with the task: bleu | chrf | rouge, of answers in words; and of
            # classes macro_f1 | matthews | top5_accuracy, or if they are numbers pearson | spearman
            measures=(),
            beam_size=1,  # answers kept while one is searched for; 1: the likeliest token each time
            length_penalty=0.6,  # of the beam's answers; 0: long ones lose
            samples=8,  # rows written to samples/, the first of the same random order; 0: none
        )
    )
    return config.lock()
