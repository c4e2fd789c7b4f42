def open_tokenizer(p):
    raise NotImplementedError
