//! Numbers as safetensors files hold them: little-endian `f32`, `f16` and `bf16`, to and from `f32`.

use half::{bf16, f16};
use safetensors::Dtype;

/// The type in which weights are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportType {
    /// As trained.
    #[default]
    F32,
    /// Half the size: 11 bits of precision, up to 65,504.
    F16,
    /// Half the size: 8 bits of precision, the range of `f32`.
    Bf16,
}

impl ExportType {
    pub(super) fn dtype(self) -> Dtype {
        match self {
            ExportType::F32 => Dtype::F32,
            ExportType::F16 => Dtype::F16,
            ExportType::Bf16 => Dtype::BF16,
        }
    }

    /// As the transformers library calls it in config.json.
    pub(super) fn name(self) -> &'static str {
        match self {
            ExportType::F32 => "float32",
            ExportType::F16 => "float16",
            ExportType::Bf16 => "bfloat16",
        }
    }

    pub(super) fn bytes_of(self, values: &[f32]) -> Vec<u8> {
        match self {
            ExportType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ExportType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
            ExportType::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        }
    }
}

/// A type whose values can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadType {
    F32,
    F16,
    Bf16,
}

impl ReadType {
    /// `None` for types that are not read.
    pub(super) fn of(dtype: Dtype) -> Option<ReadType> {
        match dtype {
            Dtype::F32 => Some(ReadType::F32),
            Dtype::F16 => Some(ReadType::F16),
            Dtype::BF16 => Some(ReadType::Bf16),
            _ => None,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            ReadType::F32 => 4,
            ReadType::F16 | ReadType::Bf16 => 2,
        }
    }

    /// Reads as many values as `place` has; `bytes` has exactly theirs.
    pub(super) fn read(self, bytes: &[u8], place: &mut [f32]) {
        assert_eq!(bytes.len(), place.len() * self.bytes(), "the bytes of these values");
        let two = |pair: &[u8]| [pair[0], pair[1]];
        let values = place.iter_mut().zip(bytes.chunks_exact(self.bytes()));
        match self {
            ReadType::F32 => values.for_each(|(place, four)| {
                *place = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            }),
            ReadType::F16 => values.for_each(|(place, pair)| *place = f16::from_le_bytes(two(pair)).to_f32()),
            ReadType::Bf16 => values.for_each(|(place, pair)| *place = bf16::from_le_bytes(two(pair)).to_f32()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_each_type_to_its_precision() {
        let values = [0.0, -1.0, 0.333_333_34, 1234.5, 6.1e-5];
        for (export, read, precision) in [
            (ExportType::F32, ReadType::F32, 0.0),
            (ExportType::F16, ReadType::F16, 1.0 / 2048.0),
            (ExportType::Bf16, ReadType::Bf16, 1.0 / 256.0),
        ] {
            let bytes = export.bytes_of(&values);
            assert_eq!(ReadType::of(export.dtype()), Some(read));
            let mut back = [9.0; 5];
            read.read(&bytes, &mut back);
            let near = |(value, back): (&f32, &f32)| (value - back).abs() <= value.abs() * precision;
            assert!(values.iter().zip(&back).all(near), "{export:?}: {back:?}");
        }
    }
}
