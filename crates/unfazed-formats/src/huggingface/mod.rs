//! Hugging Face directories: `config.json`, safetensors, `tokenizer.json`.
//!
//! | module | what |
//! |---|---|
//! | `directory` | which files belong to a model |
//! | `fields` | a JSON file's fields with typed getters |
//! | `config` | the model's shape from `config.json` |
//! | `rope` | rotary position embedding from `config.json` |
//! | [`safetensors`] | headers of safetensors files |
//! | `tokenizer` | tokenizer, special tokens and chat template |

mod config;
mod directory;
mod fields;
mod rope;
pub mod safetensors;
mod tokenizer;

pub(crate) use config::model_config;
pub(crate) use directory::{CONFIG, check_index, is_shard, open_directory};
pub(crate) use fields::Fields;
pub(crate) use tokenizer::{TokenizerFiles, chat_template, tokenizer};
