"""Writes the demo model's tokenizer as the Hugging Face folder that lm-evaluation-harness wants.

usage: tokenizer_from_gguf.py MODEL.gguf FOLDER
"""

import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CONTROL = 3  # token type in GGUF

source, folder = sys.argv[1], sys.argv[2]
fields = GGUFReader(source).fields


def value(name):
    return fields["tokenizer.ggml." + name].contents()


assert value("model") == "gpt2" and value("pre") == "smollm", "another kind of tokenizer"
tokens, types = value("tokens"), value("token_type")
merges = [tuple(merge.split(" ")) for merge in value("merges")]
tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
tokenizer.decoder = decoders.ByteLevel()
special = [token for token, type in zip(tokens, types) if type == CONTROL]
tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token=tokens[value("bos_token_id")],
    eos_token=tokens[value("eos_token_id")],
    clean_up_tokenization_spaces=False,
).save_pretrained(folder)
