//! How large images are.

use murmur_protocol::manifest::{CnnModel, MlpModel, ModelSpec};

/// The size of a model's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// 1 or 3.
    pub channels: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// Pixels from left to right.
    pub width: usize,
}

impl ImageShape {
    /// That of a model; nothing where it reads text.
    pub fn of(model: &ModelSpec) -> ImageShape {
        match model {
            ModelSpec::Transformer(_) => ImageShape::new(0, 0, 0),
            ModelSpec::Mlp(MlpModel { image_channels, image_height, image_width, .. })
            | ModelSpec::Cnn(CnnModel { image_channels, image_height, image_width, .. }) => {
                ImageShape::new(*image_channels, *image_height, *image_width)
            }
        }
    }

    pub(crate) fn new(channels: u32, height: u32, width: u32) -> ImageShape {
        ImageShape { channels: channels as usize, height: height as usize, width: width as usize }
    }

    /// Values of one image.
    pub fn values(&self) -> usize {
        self.channels * self.height * self.width
    }
}

impl std::fmt::Display for ImageShape {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} × {} × {}", self.height, self.width, self.channels)
    }
}
