//! A corpus as token ids in one mapped file: what remains of texts once they are read, cut and tokenized.
//!
//! Documents (JSON Lines, Parquet) are held out one by one, by a seeded draw; of text files the end is held out, as
//! where their bytes are read. Ids take one, two or four bytes, as the vocabulary needs.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use murmur_protocol::manifest::{DataSource, RunManifest};
use rayon::prelude::*;

use super::files::map_file;
use super::folders::list_files;
use super::held_out::{Draw, mark_of};
use super::prepared::{Key, open_or_write, unwritable};
use super::{CorpusError, Tokenizer, json_lines, parquet};

/// Bytes of text that are tokenized at once, on all threads.
const BATCH_BYTES: usize = 4 << 20;

/// A text file is cut into pieces of about this many bytes, at line ends, for the tokenizer to read one by one.
const PIECE_BYTES: usize = 64 << 10;

/// Before the ids stands the number of those that are trained on, and of the texts that they are.
const HEADER_BYTES: usize = 16;

/// Behind the ids stands where each of these texts ends.
const END_BYTES: usize = 8;

/// Token ids in a file.
pub(crate) struct TokenFile {
    content: Bytes,
    width: usize,
    /// Tokens that are trained on: those in front.
    training: usize,
    /// Texts that are trained on; 0 where files are read as one text.
    texts: usize,
}

/// What one text becomes.
struct Text {
    content: String,
    held_out: bool,
}

impl TokenFile {
    /// The tokens of the run's texts, of which those in `folder` are used again.
    ///
    /// # Errors
    /// When a file is not what the run reads, or the disk cannot be used.
    pub(super) fn open(
        manifest: &RunManifest,
        paths: &[PathBuf],
        tokenizer: Option<&Tokenizer>,
        folder: Option<&Path>,
    ) -> Result<TokenFile, CorpusError> {
        let files = list_files(manifest.data.source, paths)?;
        let width = tokenizer.map_or(1, |tokenizer| width_for(tokenizer.tokens()));
        let content = open_or_write(folder, &key(manifest, &files, tokenizer)?, |file, place| {
            Writer::new(file, width, place)?.write_all(manifest, &files, tokenizer)
        })?;
        let (training, texts) = (number_at(&content, 0), number_at(&content, 8));
        Ok(TokenFile { training, texts, content, width })
    }

    /// Tokens that are trained on.
    pub(crate) fn training(&self) -> Range<usize> {
        0..self.training
    }

    /// Tokens that are held out.
    pub(crate) fn held_out(&self) -> Range<usize> {
        self.training..(self.ends_at() - HEADER_BYTES) / self.width
    }

    /// Texts that are trained on, one by one; `None` where files are read as one text.
    pub(crate) fn texts(&self) -> Option<usize> {
        (self.texts > 0).then_some(self.texts)
    }

    /// The tokens of one of them.
    ///
    /// # Panics
    /// When there is no such text.
    pub(crate) fn text(&self, number: usize) -> Range<usize> {
        assert!(number < self.texts, "a text of the file");
        let end = |number: usize| number_at(&self.content, self.ends_at() + number * END_BYTES);
        number.checked_sub(1).map_or(0, end)..end(number)
    }

    /// Where the ends of texts stand.
    fn ends_at(&self) -> usize {
        self.content.len() - self.texts * END_BYTES
    }

    /// The ids in a range; `None` beyond the end.
    pub(crate) fn read(&self, range: Range<usize>) -> Option<Vec<u32>> {
        let ids = &self.content[..self.ends_at()];
        let bytes = ids.get(HEADER_BYTES + range.start * self.width..HEADER_BYTES + range.end * self.width)?;
        let id = |bytes: &[u8]| bytes.iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte));
        Some(bytes.chunks_exact(self.width).map(id).collect())
    }
}

fn number_at(content: &[u8], place: usize) -> usize {
    u64::from_le_bytes(content[place..place + 8].try_into().expect("eight bytes")) as usize
}

/// Bytes of an id below `tokens`.
fn width_for(tokens: usize) -> usize {
    match tokens {
        0..=0x100 => 1,
        0x101..=0x1_0000 => 2,
        _ => 4,
    }
}

fn key(manifest: &RunManifest, files: &[PathBuf], tokenizer: Option<&Tokenizer>) -> Result<Key, CorpusError> {
    let data = &manifest.data;
    let mut key = Key::new("tokens and texts, held out by content");
    key.add(format!("{:?}", data.source).as_bytes());
    key.add(data.field.as_bytes());
    key.add(data.separator.as_bytes());
    if !data.prefix.is_empty() {
        key.add(data.prefix.as_bytes());
    }
    key.add(&data.validation_fraction.to_le_bytes());
    key.add(&manifest.run.seed.to_le_bytes());
    key.add(tokenizer.map_or("", Tokenizer::digest).as_bytes());
    files.iter().try_for_each(|file| key.add_file(file))?;
    Ok(key)
}

/// Writes the training tokens to the file and the held-out ones aside in the same folder, to append them at the end.
struct Writer<'a> {
    file: &'a mut BufWriter<File>,
    held_out: BufWriter<File>,
    width: usize,
    training: u64,
    /// Where each text that is trained on ends.
    ends: Vec<u64>,
    place: &'a Path,
}

impl<'a> Writer<'a> {
    fn new(file: &'a mut BufWriter<File>, width: usize, place: &'a Path) -> Result<Writer<'a>, CorpusError> {
        let held_out = tempfile::tempfile_in(place).map_err(|error| unwritable(place, error))?;
        file.write_all(&[0; HEADER_BYTES]).map_err(|error| unwritable(place, error))?;
        Ok(Writer { file, held_out: BufWriter::new(held_out), width, training: 0, ends: Vec::new(), place })
    }

    fn write_all(
        &mut self,
        manifest: &RunManifest,
        files: &[PathBuf],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(), CorpusError> {
        let data = &manifest.data;
        let draw = Draw::new(manifest, "held-out documents");
        for path in files {
            let mut batch = Batch::default();
            let mut take = |mut content: String| {
                let is_document = data.source != DataSource::Files;
                let held_out = is_document && draw.holds_out(mark_of(&[content.as_bytes()]));
                if is_document {
                    content.insert_str(0, &data.prefix);
                    content.push_str(&data.separator);
                }
                batch.add(Text { content, held_out });
                if batch.bytes < BATCH_BYTES { Ok(()) } else { self.write(&mut batch, path, tokenizer) }
            };
            match data.source {
                DataSource::JsonLines => json_lines::each_text(path, &data.field, &mut take)?,
                DataSource::Parquet => parquet::each_text(path, &data.field, &mut take)?,
                _ => each_piece(path, &mut take)?,
            }
            self.write(&mut batch, path, tokenizer)?;
        }
        if data.source == DataSource::Files {
            self.training = data.training_bytes(self.training);
            self.ends.clear();
        }
        self.finish().map_err(|error| unwritable(self.place, error))
    }

    fn write(&mut self, batch: &mut Batch, path: &Path, tokenizer: Option<&Tokenizer>) -> Result<(), CorpusError> {
        let batch = std::mem::take(batch);
        let encode = |text: &Text| match tokenizer {
            Some(tokenizer) => tokenizer.encode(&text.content, path),
            None => Ok(text.content.bytes().map(u32::from).collect()),
        };
        let encoded: Vec<Vec<u32>> = batch.texts.par_iter().map(encode).collect::<Result<_, _>>()?;
        for (text, ids) in batch.texts.iter().zip(encoded) {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(self.width)).collect();
            let written = if text.held_out {
                self.held_out.write_all(&bytes)
            } else {
                self.training += ids.len() as u64;
                self.ends.push(self.training);
                self.file.write_all(&bytes)
            };
            written.map_err(|error| unwritable(self.place, error))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.held_out.rewind()?;
        std::io::copy(&mut self.held_out.get_ref(), self.file)?;
        for end in &self.ends {
            self.file.write_all(&end.to_le_bytes())?;
        }
        self.file.rewind()?;
        self.file.write_all(&self.training.to_le_bytes())?;
        self.file.write_all(&(self.ends.len() as u64).to_le_bytes())
    }
}

#[derive(Default)]
struct Batch {
    texts: Vec<Text>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, text: Text) {
        self.bytes += text.content.len();
        self.texts.push(text);
    }
}

/// Hands a text file to `take` in pieces that end with a line, or where lines are too long with a character.
fn each_piece(path: &Path, take: &mut dyn FnMut(String) -> Result<(), CorpusError>) -> Result<(), CorpusError> {
    let content = map_file(path)?;
    let mut start = 0;
    while start < content.len() {
        let end = end_of_piece(&content, start);
        let piece = std::str::from_utf8(&content[start..end])
            .map_err(|error| CorpusError::NotText { path: path.to_owned(), offset: start + error.valid_up_to() })?;
        take(piece.to_owned())?;
        start = end;
    }
    Ok(())
}

fn end_of_piece(content: &[u8], start: usize) -> usize {
    let Some(reach) = content.get(start..start + PIECE_BYTES) else { return content.len() };
    // A line end before anything but another white space: tokenizers take runs of those together.
    let ends = reach.windows(2).rposition(|pair| pair[0] == b'\n' && !pair[1].is_ascii_whitespace());
    let character = || reach.iter().rposition(|byte| (*byte as i8) >= -0x40).filter(|position| *position > 0);
    start + ends.map(|position| position + 1).or_else(character).unwrap_or(PIECE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tests::write_tokenizer;
    use super::*;

    fn manifest(source: DataSource) -> RunManifest {
        let mut manifest = RunManifest::default();
        manifest.data.source = source;
        manifest.data.separator = " ".to_owned();
        manifest
    }

    #[test]
    fn documents_are_held_out_by_seed_and_nothing_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("texts.jsonl");
        let lines: String = (0..2000).map(|index| format!("{{\"text\": \"{index:04}\"}}\n")).collect();
        std::fs::write(&path, &lines).expect("written");
        let open = |seed| {
            let mut manifest = manifest(DataSource::JsonLines);
            manifest.run.seed = seed;
            TokenFile::open(&manifest, std::slice::from_ref(&path), None, None).expect("tokens")
        };
        let texts = |file: &TokenFile, range: Range<usize>| -> Vec<String> {
            let bytes: Vec<u8> = file.read(range).expect("there").iter().map(|id| *id as u8).collect();
            String::from_utf8(bytes).expect("text").split_whitespace().map(str::to_owned).collect()
        };
        let file = open(1);
        let (training, held_out) = (texts(&file, file.training()), texts(&file, file.held_out()));
        assert!((150..250).contains(&held_out.len()), "{}", held_out.len());
        let mut all = [training, held_out.clone()].concat();
        let each = (0..file.texts().expect("texts")).map(|number| texts(&file, file.text(number)));
        assert_eq!(each.flatten().collect::<Vec<_>>(), texts(&file, file.training()), "one text after the other");
        assert_eq!(file.text(3).len(), 5);
        all.sort();
        assert_eq!(all, (0..2000).map(|index| format!("{index:04}")).collect::<Vec<_>>());
        let again = open(1);
        assert_eq!(texts(&again, again.held_out()), held_out);
        let other = open(2);
        assert_ne!(texts(&other, other.held_out()), held_out);
        // Another file in front, and a text more in the middle, move none.
        let more: String = (5000..5003).map(|index| format!("{{\"text\": \"{index}\"}}\n")).collect();
        std::fs::write(folder.path().join("earlier.jsonl"), &more).expect("written");
        let (front, back) = lines.split_at(lines.len() / 2);
        std::fs::write(&path, [front, "{\"text\": \"6000\"}\n", back].concat()).expect("written");
        let paths = [folder.path().join("earlier.jsonl"), path.clone()];
        let file = TokenFile::open(&manifest(DataSource::JsonLines), &paths, None, None).expect("tokens");
        let mut of_more = texts(&file, file.held_out());
        of_more.retain(|text| text.as_str() < "5000");
        assert_eq!(of_more, held_out);
    }

    #[test]
    fn each_text_stands_between_the_prefix_and_the_separator() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("texts.jsonl");
        std::fs::write(&path, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n").expect("written");
        let mut manifest = manifest(DataSource::JsonLines);
        manifest.data.validation_fraction = f64::MIN_POSITIVE;
        let bytes = |manifest: &RunManifest| {
            let cache = Some(folder.path().join("tokens"));
            let file = TokenFile::open(manifest, std::slice::from_ref(&path), None, cache.as_deref()).expect("tokens");
            file.read(file.training()).expect("there").iter().map(|id| *id as u8).collect::<Vec<u8>>()
        };
        assert_eq!(bytes(&manifest), b"a b ");
        manifest.data.prefix = "<s>".to_owned();
        assert_eq!(bytes(&manifest), b"<s>a <s>b ", "and not what the cache has of texts without one");
    }

    /// The system's folder for temporary files is often in memory.
    #[test]
    fn what_is_held_out_lies_in_the_folder_of_the_rest_meanwhile() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("tokens");
        let mut file = BufWriter::new(tempfile::tempfile().expect("a file"));
        let error = Writer::new(&mut file, 1, &place).err().expect("no such folder");
        assert!(matches!(error, CorpusError::CacheUnwritable(path, _) if path == place));
        std::fs::create_dir(&place).expect("a folder");
        assert!(Writer::new(&mut file, 1, &place).is_ok());
    }

    #[test]
    fn a_text_file_is_tokenized_piece_by_piece_and_its_end_is_held_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, cache) = (folder.path().join("text.txt"), folder.path().join("tokens"));
        let letters: Vec<u8> = (0..200_000u64).map(|index| (index * index % 26) as u8).collect();
        let text: Vec<u8> =
            letters.iter().zip(1..).flat_map(|(id, n)| [b'a' + id, if n % 50 == 0 { b'\n' } else { b' ' }]).collect();
        std::fs::write(&path, text).expect("written");
        let place = folder.path().join("tokenizer.json");
        write_tokenizer(&place);
        let tokenizer = Tokenizer::open(&place).expect("a tokenizer");
        for _ in 0..2 {
            let paths = std::slice::from_ref(&path);
            let file = TokenFile::open(&manifest(DataSource::Files), paths, Some(&tokenizer), Some(&cache));
            let file = file.expect("tokens");
            assert_eq!((file.training(), file.held_out()), (0..180_000, 180_000..200_000));
            let expected: Vec<u32> = letters.iter().map(|id| u32::from(*id) + 1).collect();
            assert!(file.read(0..200_000).expect("there") == expected);
            assert_eq!((file.read(199_999..200_001), file.texts()), (None, None));
        }
        assert_eq!(std::fs::read_dir(&cache).expect("a folder").count(), 1);
    }

    #[test]
    fn text_that_is_not_utf8_is_named_with_its_byte() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text.txt");
        let mut text = "zwölf\n".repeat(40_000).into_bytes();
        text[200_001] = 0xff;
        std::fs::write(&path, &text).expect("written");
        let place = folder.path().join("tokenizer.json");
        write_tokenizer(&place);
        let tokenizer = Tokenizer::open(&place).expect("a tokenizer");
        let paths = std::slice::from_ref(&path);
        let result = TokenFile::open(&manifest(DataSource::Files), paths, Some(&tokenizer), None);
        let message = result.err().expect("not text").to_string();
        assert!(message.ends_with("text.txt is not UTF-8 text: byte 200001 cannot be read"), "{message}");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let text = "ü".repeat(PIECE_BYTES);
        let end = end_of_piece(text.as_bytes(), 0);
        assert!(end <= PIECE_BYTES && end > PIECE_BYTES - 4 && text.is_char_boundary(end));
        // Continuation bytes alone are no text; cutting them must come to an end all the same.
        assert_eq!(end_of_piece(&vec![0x80; 2 * PIECE_BYTES], 0), PIECE_BYTES);
    }
}
