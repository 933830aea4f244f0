//! A file of tensors in the safetensors format, written and read tensor by tensor: never as a second copy in memory.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::checkpoint_error::CheckpointError;

/// Bytes that are hashed or read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The largest header, which safetensors has as well.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// A tensor to be written: its name, shape and kind.
type Named = (String, Vec<usize>, Dtype);

/// A new file of tensors, which are written in any order, and each piece by piece.
pub(super) struct TensorWriter {
    path: PathBuf,
    file: File,
    /// Of each tensor, in the order of the file, where its next bytes belong and where it ends.
    places: Vec<(String, u64, u64)>,
}

impl TensorWriter {
    /// # Errors
    /// When the folder cannot be written.
    pub(super) fn create(path: PathBuf, tensors: &[Named]) -> io::Result<TensorWriter> {
        let mut end = 0;
        let infos = tensors.iter().map(|(name, shape, kind)| {
            let begin = end;
            end += shape.iter().product::<usize>() * kind.bitsize() / 8;
            (name.clone(), TensorInfo { dtype: *kind, shape: shape.clone(), data_offsets: (begin, end) })
        });
        let infos: Vec<(String, TensorInfo)> = infos.collect();
        let metadata = Metadata::new(None, infos.clone()).map_err(io::Error::other)?;
        let mut header = serde_json::to_vec(&metadata)?;
        // As the format has it: values begin at a multiple of eight.
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = File::create(&path)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let values = file.stream_position()?;
        let place =
            |(name, TensorInfo { data_offsets: (begin, end), .. })| (name, values + begin as u64, values + end as u64);
        Ok(TensorWriter { path, file, places: infos.into_iter().map(place).collect() })
    }

    /// Writes the next bytes of this tensor.
    ///
    /// # Errors
    /// When the disk is full, or there is no such tensor, or it has fewer.
    pub(super) fn put(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let place = self.places.iter().position(|(found, ..)| found == name);
        self.put_at(place.ok_or_else(|| io::Error::other(format!("there is no tensor {name}")))?, bytes)
    }

    /// Writes this tensor, unless it is there already.
    ///
    /// # Errors
    /// As [`TensorWriter::put`].
    pub(super) fn put_once(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let is_there = self.places.iter().any(|(found, next, end)| found == name && next == end);
        if is_there { Ok(()) } else { self.put(name, bytes) }
    }

    /// Writes the bytes of the tensors that follow, in their order.
    ///
    /// # Errors
    /// When the disk is full, or there are fewer.
    pub(super) fn put_next(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let place = self.places.iter().position(|(_, next, end)| next < end);
            let place = place.ok_or_else(|| io::Error::other("more values than there are tensors for"))?;
            let (_, next, end) = &self.places[place];
            let (head, rest) = bytes.split_at(bytes.len().min((end - next) as usize));
            self.put_at(place, head)?;
            bytes = rest;
        }
        Ok(())
    }

    fn put_at(&mut self, place: usize, bytes: &[u8]) -> io::Result<()> {
        let (name, next, end) = &mut self.places[place];
        if bytes.len() as u64 > *end - *next {
            return Err(io::Error::other(format!("more values than {name} has")));
        }
        self.file.seek(SeekFrom::Start(*next))?;
        self.file.write_all(bytes)?;
        *next += bytes.len() as u64;
        Ok(())
    }

    /// Whether every tensor is there.
    pub(super) fn is_full(&self) -> bool {
        self.places.iter().all(|(_, next, end)| next == end)
    }

    /// Brings the file to the disk and returns its BLAKE3 in hexadecimal.
    ///
    /// # Errors
    /// When the disk fails, or some tensor is not whole.
    pub(super) fn finish(&mut self) -> io::Result<String> {
        if !self.is_full() {
            return Err(io::Error::other("some values are missing"));
        }
        self.file.sync_all()?;
        hash_of(&mut File::open(&self.path)?)
    }
}

/// The BLAKE3 of what is left to be read of a file, in hexadecimal.
fn hash_of(file: &mut File) -> io::Result<String> {
    let (mut hasher, mut piece) = (blake3::Hasher::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            count => drop(hasher.update(&piece[..count])),
        }
    }
}

/// A file whose bytes are those that were written.
pub(super) struct TensorFile {
    path: PathBuf,
    file: BufReader<File>,
    metadata: Metadata,
    /// Where values begin.
    begin: u64,
}

impl TensorFile {
    /// # Errors
    /// When it is missing, is no such file, or has another hash than this, in hexadecimal.
    pub(super) fn open(path: PathBuf, hash: Option<&String>) -> Result<TensorFile, CheckpointError> {
        let io = |error| CheckpointError::Io(path.clone(), error);
        let mut file = File::open(&path).map_err(io)?;
        if hash != Some(&hash_of(&mut file).map_err(io)?) {
            return Err(CheckpointError::Hash(path));
        }
        let unfit = |reason: String| CheckpointError::Content(path.clone(), reason);
        let length = file.stream_position().map_err(io)?;
        file.rewind().map_err(io)?;
        let mut eight = [0; 8];
        file.read_exact(&mut eight).map_err(io)?;
        let header_bytes = u64::from_le_bytes(eight);
        if header_bytes > HEADER_BYTES_MAX.min(length - 8) {
            return Err(unfit(format!("a header of {header_bytes} bytes in a file of {length}")));
        }
        let mut header = Vec::new();
        (&mut file).take(header_bytes).read_to_end(&mut header).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| unfit(error.to_string()))?;
        let begin = 8 + header_bytes;
        if begin + metadata.data_len() as u64 != length {
            return Err(unfit(format!("{length} bytes are not those of its header")));
        }
        Ok(TensorFile { file: BufReader::with_capacity(PIECE_BYTES, file), path, metadata, begin })
    }

    /// Reads the values of a tensor into a place of their number.
    ///
    /// # Errors
    /// When there is no such tensor, or its values are others than as many finite ones of 32 bits.
    pub(super) fn read(&mut self, name: &str, values: &mut [f32]) -> Result<(), CheckpointError> {
        let count = values.len();
        self.read_bytes(name, Dtype::F32, bytemuck::cast_slice_mut(values), || format!("{count} values of 32 bits"))?;
        let unfit = |reason: String| CheckpointError::Content(self.path.clone(), reason);
        // The format's order of bytes, whatever this machine's is.
        values.iter_mut().for_each(|value| *value = f32::from_bits(u32::from_le(value.to_bits())));
        let is_finite = values.iter().all(|value| value.is_finite());
        if is_finite { Ok(()) } else { Err(unfit(format!("{name} is not finite"))) }
    }

    /// The codes of 8 bits of a tensor, so many.
    ///
    /// # Errors
    /// When there is no such tensor, or it has others.
    pub(super) fn codes(&mut self, name: &str, count: usize) -> Result<Vec<u8>, CheckpointError> {
        let mut codes = vec![0; count];
        self.read_bytes(name, Dtype::U8, &mut codes, || format!("{count} codes of 8 bits"))?;
        Ok(codes)
    }

    fn read_bytes(
        &mut self,
        name: &str,
        kind: Dtype,
        bytes: &mut [u8],
        wanted: impl Fn() -> String,
    ) -> Result<(), CheckpointError> {
        let TensorFile { path, file, metadata, begin } = self;
        let unfit = |reason: String| CheckpointError::Content(path.clone(), reason);
        let io = |error| CheckpointError::Io(path.clone(), error);
        let tensor = metadata.info(name).ok_or_else(|| unfit(format!("there is no tensor {name}")))?;
        let (first, end) = tensor.data_offsets;
        if tensor.dtype != kind || end - first != bytes.len() {
            return Err(unfit(format!("{name} is not {}", wanted())));
        }
        file.seek(SeekFrom::Start(*begin + first as u64)).map_err(io)?;
        file.read_exact(bytes).map_err(io)
    }

    /// The values of a tensor, so many.
    ///
    /// # Errors
    /// As [`TensorFile::read`].
    pub(super) fn values(&mut self, name: &str, count: usize) -> Result<Vec<f32>, CheckpointError> {
        let mut values = vec![0.0; count];
        self.read(name, &mut values)?;
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn what_is_written_is_what_the_library_reads_and_comes_back() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("some.safetensors");
        let (one, other, codes) = ([1.0, -2.5, 3.0], [0.25; 4], [7, 255, 0]);
        let named = |name: &str, shape: &[usize], kind| (name.to_owned(), shape.to_vec(), kind);
        let tensors = [named("b", &[3], Dtype::F32), named("codes", &[3], Dtype::U8), named("a", &[2, 2], Dtype::F32)];
        let mut file = TensorWriter::create(path.clone(), &tensors).expect("created");
        file.put("a", bytemuck::cast_slice(&other[..1])).expect("written");
        file.put("codes", &codes).expect("written");
        assert!(file.put("codes", &[0]).is_err() && file.put("c", &[0]).is_err() && file.finish().is_err());
        // The last one of these and what is left of the one behind it.
        file.put_next(bytemuck::cast_slice(&[1.0_f32, -2.5, 3.0, 0.25, 0.25, 0.25])).expect("written");
        assert!(file.put_next(&[0]).is_err());
        file.put_once("a", &[0; 16]).expect("it is there");
        let hash = file.finish().expect("whole");
        let bytes = std::fs::read(&path).expect("there");
        assert_eq!(hash, blake3::hash(&bytes).to_hex().to_string());
        let read = SafeTensors::deserialize(&bytes).expect("a file of the format");
        assert_eq!(read.tensor("a").expect("there").shape(), [2, 2]);
        assert_eq!(read.tensor("b").expect("there").data(), bytemuck::cast_slice::<f32, u8>(&one));
        let mut file = TensorFile::open(path.clone(), Some(&hash)).expect("intact");
        assert_eq!(file.values("a", 4).expect("there"), other);
        assert_eq!(file.values("b", 3).expect("there"), one);
        assert_eq!(file.codes("codes", 3).expect("there"), codes);
        let error = file.codes("a", 16).expect_err("values").to_string();
        assert!(error.contains("a is not 16 codes of 8 bits"), "{error}");
        for (name, count, reason) in [("c", 3, "no tensor c"), ("a", 3, "a is not 3 values of 32 bits")] {
            let error = file.values(name, count).expect_err("not there").to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(matches!(TensorFile::open(path, Some(&"ab".repeat(32))), Err(CheckpointError::Hash(_))));
    }
}
