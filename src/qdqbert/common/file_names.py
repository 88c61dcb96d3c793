"""Names of the files of checkpoints, which transformers and sentence-transformers give them."""

CARD = "README.md"
CONFIG = "config.json"

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
CHAT_TEMPLATE = "chat_template.jinja"
# The vocabulary of DeBERTa's tokenizers, which need no tokenizer.json then.
SPM = "spm.model"

# Of sentence-transformers: its modules, the settings of the model, and those of its encoder.
MODULES = "modules.json"
MODEL_SETTINGS = "config_sentence_transformers.json"
SETTINGS = "sentence_bert_config.json"
