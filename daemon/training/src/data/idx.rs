//! IDX files: the format of MNIST and its family (<http://yann.lecun.com/exdb/mnist/>), plain or gzip-compressed.
//!
//! Two zero bytes, the type of the values (8: bytes), the number of dimensions; each dimension in four bytes, the most
//! significant first; then the values.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use murmur_protocol::manifest::DataSource;

use super::CorpusError;
use super::files::map_file;
use super::folders::list_files;
use super::image_shape::ImageShape;
use super::prepared::{Key, open_or_write, unwritable};

/// Type of values: unsigned bytes, the only one that images and labels have.
const BYTES: u8 = 8;

/// The values of a file.
struct Idx {
    path: PathBuf,
    dimensions: Vec<usize>,
    values: Bytes,
}

/// Images of one size with their labels.
pub(super) struct Pair {
    /// Where the labels are from.
    pub(super) labels_path: PathBuf,
    /// Each image row by row.
    pub(super) pixels: Bytes,
    /// One for each image.
    pub(super) labels: Bytes,
}

/// The pairs of files at `paths`, images of `shape`. The first file of images belongs to the first of labels,
/// and so on. Content of compressed files is kept in `folder`.
///
/// # Errors
/// When a file is damaged, lacks its partner or does not agree with it, or images have another size.
pub(super) fn open_pairs(
    paths: &[PathBuf],
    shape: ImageShape,
    folder: Option<&Path>,
) -> Result<Vec<Pair>, CorpusError> {
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for path in list_files(DataSource::Idx, paths)? {
        let idx = open(&path, folder)?;
        match idx.dimensions.len() {
            1 => labels.push(idx),
            3 => images.push(idx),
            other => {
                let reason = format!("{other} dimensions, where images have 3 and labels 1");
                return Err(CorpusError::NotIdx(path, reason));
            }
        }
    }
    if images.len() != labels.len() {
        return Err(CorpusError::Unpaired { images: images.len(), labels: labels.len() });
    }
    images.into_iter().zip(labels).map(|(images, labels)| pair(images, labels, shape)).collect()
}

fn pair(images: Idx, labels: Idx, shape: ImageShape) -> Result<Pair, CorpusError> {
    let actual = ImageShape { channels: 1, height: images.dimensions[1], width: images.dimensions[2] };
    if actual != shape {
        return Err(CorpusError::ImageSize { path: images.path, actual, expected: shape });
    }
    if images.dimensions[0] != labels.dimensions[0] {
        return Err(CorpusError::CountMismatch {
            images: images.dimensions[0],
            images_path: images.path,
            labels: labels.dimensions[0],
            labels_path: labels.path,
        });
    }
    Ok(Pair { labels_path: labels.path, pixels: images.values, labels: labels.values })
}

fn open(path: &Path, folder: Option<&Path>) -> Result<Idx, CorpusError> {
    let content = map_file(path)?;
    let is_compressed = content.starts_with(&[0x1f, 0x8b]);
    let content = if is_compressed { decompressed(path, &content, folder)? } else { content };
    let (dimensions, header, length) = read_header(path, &mut &content[..])?;
    let actual = content.len() - header;
    if actual != length {
        let reason = format!("{actual} bytes of values, but its header {dimensions:?} says {length}");
        return Err(CorpusError::NotIdx(path.to_owned(), reason));
    }
    Ok(Idx { path: path.to_owned(), dimensions, values: content.slice(header..) })
}

/// (dimensions, bytes of the header, bytes of the values).
fn read_header(path: &Path, reader: &mut impl Read) -> Result<(Vec<usize>, usize, usize), CorpusError> {
    let not_idx = |reason: &str| CorpusError::NotIdx(path.to_owned(), reason.to_owned());
    let mut word = [0; 4];
    let mut read = |word: &mut [u8; 4]| reader.read_exact(word).map_err(|_| not_idx("it ends within its header"));
    read(&mut word)?;
    let [0, 0, kind, count @ 1..=4] = word else { return Err(not_idx("it does not begin as one")) };
    if kind != BYTES {
        return Err(not_idx(&format!("values of type {kind:#04x}, where images and labels are bytes (0x08)")));
    }
    let mut dimensions = Vec::new();
    for _ in 0..count {
        read(&mut word)?;
        dimensions.push(u32::from_be_bytes(word) as usize);
    }
    let length = dimensions.iter().try_fold(1usize, |length, dimension| length.checked_mul(*dimension));
    let length = length.filter(|length| *length > 0).ok_or_else(|| not_idx("its header says that it is empty"))?;
    Ok((dimensions, 4 + 4 * usize::from(count), length))
}

fn decompressed(path: &Path, content: &[u8], folder: Option<&Path>) -> Result<Bytes, CorpusError> {
    let mut key = Key::new("decompressed");
    key.add_file(path)?;
    open_or_write(folder, &key, |file, place| {
        let damaged = |error| CorpusError::NotIdx(path.to_owned(), format!("gzip: {error}"));
        let (_, header, length) = read_header(path, &mut MultiGzDecoder::new(content))?;
        // One byte more than there should be shows that there are too many, and no more of them are wanted.
        let mut values = MultiGzDecoder::new(content).take((header + length) as u64 + 1);
        let mut buffer = vec![0; 1 << 16];
        loop {
            match values.read(&mut buffer).map_err(damaged)? {
                0 => return Ok(()),
                count => file.write_all(&buffer[..count]).map_err(|error| unwritable(place, error))?,
            }
        }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape { channels: 1, height: 2, width: 3 };

    /// `images` of 2 × 3 pixels, image `i` of pixels `i`, with labels `i % 3`.
    pub(in super::super) fn write_pair(folder: &Path, images: u8, name: &str) -> [PathBuf; 2] {
        let paths = ["images", "labels"].map(|kind| folder.join(format!("{name}-{kind}.idx")));
        let pixels: Vec<u8> = (0..images).flat_map(|image| [image; 6]).collect();
        let header = [0, 0, 8, 3, 0, 0, 0, images, 0, 0, 0, 2, 0, 0, 0, 3];
        std::fs::write(&paths[0], [&header[..], &pixels].concat()).expect("written");
        let labels: Vec<u8> = (0..images).map(|image| image % 3).collect();
        std::fs::write(&paths[1], [&[0, 0, 8, 1, 0, 0, 0, images][..], &labels].concat()).expect("written");
        paths
    }

    fn compress(path: &Path) -> PathBuf {
        let compressed = path.with_extension("gz");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&std::fs::read(path).expect("there")).expect("compressed");
        std::fs::write(&compressed, encoder.finish().expect("compressed")).expect("written");
        compressed
    }

    fn message(result: Result<Vec<Pair>, CorpusError>) -> String {
        result.err().expect("an error").to_string()
    }

    #[test]
    fn pairs_are_read_plain_and_compressed() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = write_pair(folder.path(), 5, "plain");
        let compressed = plain.clone().map(|path| compress(&path));
        for paths in [&plain, &compressed] {
            let pairs = open_pairs(paths, SHAPE, None).expect("a pair");
            assert_eq!((pairs.len(), pairs[0].pixels.len()), (1, 30));
            assert_eq!(pairs[0].labels[..], [0, 1, 2, 0, 1]);
        }
        let both = [plain, compressed].concat();
        assert_eq!(open_pairs(&both, SHAPE, Some(folder.path())).expect("two pairs").len(), 2);
    }

    #[test]
    fn damaged_and_foreign_files_are_named_with_what_is_wrong() {
        let folder = tempfile::tempdir().expect("a folder");
        let [images, labels] = write_pair(folder.path(), 5, "whole");
        let [_, fewer] = write_pair(folder.path(), 4, "fewer");
        let open =
            |images: &Path, labels: &Path| message(open_pairs(&[images.to_owned(), labels.to_owned()], SHAPE, None));
        assert!(open(&images, &fewer).contains("whole-images.idx holds 5 images, but"));
        assert!(
            message(open_pairs(std::slice::from_ref(&images), SHAPE, None)).ends_with("1 of images and 0 of labels")
        );
        let size =
            message(open_pairs(&[images.clone(), labels.clone()], ImageShape { height: 3, width: 2, ..SHAPE }, None));
        assert!(size.ends_with("images of 2 × 3 × 1 pixels, but the model reads 3 × 2 × 1"), "{size}");
        let content = std::fs::read(&images).expect("there");
        let path = folder.path().join("damaged.idx");
        for (damaged, expected) in [
            (content[..content.len() - 1].to_vec(), "29 bytes of values, but its header [5, 2, 3] says 30"),
            ([&content[..], b"x"].concat(), "31 bytes of values, but its header [5, 2, 3] says 30"),
            (content[..7].to_vec(), "it ends within its header"),
            (b"text".to_vec(), "it does not begin as one"),
            ([&[0, 0, 13, 1][..], &content[4..]].concat(), "values of type 0x0d"),
            ([&[0, 0, 8, 4][..], &[0xff; 16]].concat(), "its header says that it is empty"),
        ] {
            std::fs::write(&path, &damaged).expect("written");
            assert!(open(&path, &labels).contains(expected), "{expected}");
            assert!(open(&compress(&path), &labels).contains(expected), "{expected}, compressed");
        }
        let compressed = compress(&images);
        let content = std::fs::read(&compressed).expect("there");
        std::fs::write(&compressed, &content[..content.len() - 9]).expect("written");
        assert!(open(&compressed, &labels).contains("gzip: "), "cut off");
    }
}
