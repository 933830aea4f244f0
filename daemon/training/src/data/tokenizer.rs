//! A Hugging Face `tokenizer.json`, the same file on all nodes of a run.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use murmur_protocol::manifest::{DataSpec, RunManifest};
use serde::de::IgnoredAny;
use tokenizers::Tokenizer as HuggingFace;

use super::CorpusError;
use crate::regular;

/// The largest `tokenizer.json` that is read; those of a quarter of a million tokens have 35 MB.
const BYTES_MAX: u64 = 256 << 20;

/// Turns texts into token ids.
pub struct Tokenizer {
    path: PathBuf,
    inner: HuggingFace,
    digest: String,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// When it cannot be read or is none.
    pub fn open(path: &Path) -> Result<Tokenizer, CorpusError> {
        let unreadable = |reason| CorpusError::TokenizerUnreadable(path.to_owned(), reason);
        let bytes = regular::read(path, BYTES_MAX).map_err(|error| unreadable(error.to_string()))?;
        // The library panics at a file that ends too soon, and at some others.
        serde_json::from_slice::<IgnoredAny>(&bytes).map_err(|error| unreadable(error.to_string()))?;
        let read = catch_unwind(|| HuggingFace::from_bytes(&bytes));
        let read = read.unwrap_or_else(|_| Err("the tokenizers library fails at it".into()));
        let mut inner = read.map_err(|error| unreadable(error.to_string()))?;
        // Some files say how to fill or cut a batch of their own model's: whole texts are wanted here.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| unreadable(error.to_string()))?;
        Ok(Tokenizer { path: path.to_owned(), inner, digest: blake3::hash(&bytes).to_hex().to_string() })
    }

    /// The run's tokenizer at `path`: the file that `digest` names, for a model of `vocabulary` tokens.
    ///
    /// # Errors
    /// When it is another file, or has ids that the model has no place for.
    pub fn of_run(path: &Path, digest: &str, vocabulary: usize) -> Result<Tokenizer, CorpusError> {
        let tokenizer = Tokenizer::open(path)?;
        if !digest.eq_ignore_ascii_case(&tokenizer.digest) {
            let (expected, actual) = (digest.to_owned(), tokenizer.digest);
            return Err(CorpusError::OtherTokenizer { path: path.to_owned(), expected, actual });
        }
        if tokenizer.tokens() > vocabulary {
            let tokens = tokenizer.tokens();
            return Err(CorpusError::VocabularyTooLarge { path: path.to_owned(), tokens, vocabulary });
        }
        Ok(tokenizer)
    }

    /// BLAKE3 of the file in hexadecimal: `data.tokenizer` of a run.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The largest token id, plus one.
    pub fn tokens(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1)
    }

    /// The ids of a text of the data file `source`, without tokens around it.
    ///
    /// # Errors
    /// When the tokenizer has no token for a part of it.
    pub(super) fn encode(&self, text: &str, source: &Path) -> Result<Vec<u32>, CorpusError> {
        match self.inner.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(CorpusError::NotTokenized(source.to_owned(), error.to_string())),
        }
    }

    /// The ids of a prompt as the run's texts begin: with `data.prefix`; without one, where a run has a base, with the tokens that
    /// the tokenizer's template puts in front of a text, because that base has seen no text without them.
    ///
    /// # Errors
    /// When it has no token for a part of it.
    pub fn encode_prompt(&self, prompt: &str, manifest: &RunManifest) -> Result<Vec<u32>, CorpusError> {
        let RunManifest { data, base, .. } = manifest;
        if !data.prefix.is_empty() {
            return self.encode(&[&data.prefix, prompt].concat(), &self.path);
        }
        let tokens = self.encode(prompt, &self.path)?;
        if base.digest.is_empty() || tokens.is_empty() {
            return Ok(tokens);
        }
        let not_tokenized = |reason| CorpusError::NotTokenized(self.path.clone(), reason);
        let whole = self.inner.encode(prompt, true).map_err(|error| not_tokenized(error.to_string()))?;
        let in_front = whole.get_special_tokens_mask().iter().take_while(|is_special| **is_special == 1).count();
        Ok([&whole.get_ids()[..in_front], &tokens].concat())
    }

    /// What of a run's `data.prefix` and `data.separator` is written like a token, and is none of this tokenizer.
    pub(super) fn unknown_token<'a>(&self, data: &'a DataSpec) -> Option<&'a str> {
        written_like_tokens(data).find(|text| self.inner.token_to_id(text).is_none())
    }

    /// Turns token after token into text: what each adds, which is nothing while a character is not complete.
    pub fn decoding(&self) -> impl FnMut(u32) -> Result<String, CorpusError> + '_ {
        let mut stream = self.inner.decode_stream(false);
        move |token| match stream.step(token) {
            Ok(text) => Ok(text.unwrap_or_default()),
            Err(error) => Err(CorpusError::NotTokenized(self.path.clone(), error.to_string())),
        }
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What of a run's `data.prefix` and `data.separator` is written like a token, such as `<|endoftext|>` or `</s>`.
pub(super) fn written_like_tokens(data: &DataSpec) -> impl Iterator<Item = &str> {
    let is_like_one = |text: &&str| {
        text.len() > 2 && text.rfind('<') == Some(0) && text.find('>') == Some(text.len() - 1) && !text.contains(' ')
    };
    [data.prefix.trim(), data.separator.trim()].into_iter().filter(is_like_one)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Words of one lower-case letter each, and an unknown one: ids 0 to 26.
    pub(in super::super) fn write_tokenizer(path: &Path) {
        let letters: String = ('a'..='z').zip(1..).map(|(letter, id)| format!(", \"{letter}\": {id}")).collect();
        let text = format!(
            "{{\"version\": \"1.0\", \"pre_tokenizer\": {{\"type\": \"Whitespace\"}}, \"model\": {{\"type\": \
             \"WordLevel\", \"vocab\": {{\"?\": 0{letters}}}, \"unk_token\": \"?\"}}}}"
        );
        std::fs::write(path, text).expect("written");
    }

    /// As those of Llama 3 and Mistral: a token begins a text, by a template.
    fn with_template(path: &Path) -> Tokenizer {
        write_tokenizer(path);
        let mut content: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).expect("written")).expect("JSON");
        let token = |id: u32, content: &str| {
            serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                               "normalized": false, "special": true})
        };
        content["added_tokens"] = serde_json::json!([token(27, "<s>"), token(28, "</s>")]);
        let sequence = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
        let special = |id: &str| serde_json::json!({"SpecialToken": {"id": id, "type_id": 0}});
        let of = |id: &str, number: u32| serde_json::json!({"id": id, "ids": [number], "tokens": [id]});
        content["post_processor"] = serde_json::json!({
            "type": "TemplateProcessing",
            "single": [special("<s>"), sequence, special("</s>")],
            "pair": [special("<s>"), sequence, sequence],
            "special_tokens": {"<s>": of("<s>", 27), "</s>": of("</s>", 28)},
        });
        std::fs::write(path, content.to_string()).expect("written");
        Tokenizer::open(path).expect("a tokenizer")
    }

    #[test]
    fn prompts_begin_as_the_base_has_seen_texts_or_as_the_run_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokenizer.json");
        let tokenizer = with_template(&path);
        let mut manifest = RunManifest::default();
        let prompt = |manifest: &RunManifest| tokenizer.encode_prompt("a <s> b", manifest).expect("known");
        assert_eq!(prompt(&manifest), [1, 27, 2], "from scratch texts have nothing around them");
        manifest.base.digest = "00".repeat(32);
        assert_eq!(prompt(&manifest), [27, 1, 27, 2]);
        manifest.data.prefix = "</s>".to_owned();
        assert_eq!(prompt(&manifest), [28, 1, 27, 2]);
        assert_eq!(tokenizer.encode_prompt("", &RunManifest::default()).expect("nothing"), [] as [u32; 0]);
    }

    #[test]
    fn what_is_written_like_a_token_and_is_none_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let tokenizer = with_template(&folder.path().join("tokenizer.json"));
        let unknown = |prefix: &str, separator: &str| {
            let data = DataSpec { prefix: prefix.to_owned(), separator: separator.to_owned(), ..DataSpec::default() };
            tokenizer.unknown_token(&data).map(str::to_owned)
        };
        assert_eq!(unknown("<s>", "<|endoftext|>\n").as_deref(), Some("<|endoftext|>"));
        assert_eq!(unknown("<|begin_of_text|>", "</s>").as_deref(), Some("<|begin_of_text|>"));
        for separator in ["\n\n", "</s>", "</s><s>", "<>", "a < b >", ""] {
            assert_eq!(unknown("", separator), None, "{separator}");
        }
    }

    #[test]
    fn a_tokenizer_that_does_not_fit_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokenizer.json");
        write_tokenizer(&path);
        let tokenizer = Tokenizer::open(&path).expect("a tokenizer");
        assert_eq!(tokenizer.tokens(), 27);
        assert_eq!(tokenizer.encode("a c z", &path).expect("known"), [1, 3, 26]);
        let mut decode = tokenizer.decoding();
        let pieces: Vec<String> = [1, 3, 26].map(|token| decode(token).expect("known")).into();
        assert_eq!(pieces.concat(), "a c z");
        let digest = tokenizer.digest().to_owned();
        assert!(Tokenizer::of_run(&path, &digest.to_uppercase(), 27).is_ok());
        let message = |digest: &str, vocabulary| match Tokenizer::of_run(&path, digest, vocabulary) {
            Ok(_) => panic!("refused"),
            Err(error) => error.to_string(),
        };
        assert!(message(&digest, 26).ends_with("has 27 tokens, but the model's vocabulary has 26"));
        assert!(message(&"00".repeat(32), 27).contains("is not this run's"));
        std::fs::write(&path, "{}").expect("written");
        assert!(Tokenizer::open(&path).is_err());
    }

    #[test]
    fn a_tokenizer_that_is_cut_off_or_makes_the_library_panic_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokenizer.json");
        write_tokenizer(&path);
        let whole = std::fs::read_to_string(&path).expect("just written");
        let refused = |text: &str| {
            std::fs::write(&path, text).expect("written");
            Tokenizer::open(&path).map(drop).expect_err("it is none").to_string()
        };
        for end in 1..whole.len() {
            let error = refused(&whole[..end]);
            assert!(error.contains("EOF"), "{error}");
        }
        let panics = whole.replacen('{', r#"{"normalizer":{"type":"Precompiled"},"#, 1);
        let error = refused(&panics);
        assert!(error.contains("the tokenizers library fails at it"), "{error}");
    }
}
