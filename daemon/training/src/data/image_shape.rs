//! How large images are.

use murmur_protocol::manifest::ModelSpec;

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
    /// That of a model.
    pub fn of(model: &ModelSpec) -> ImageShape {
        ImageShape {
            channels: model.image_channels as usize,
            height: model.image_height as usize,
            width: model.image_width as usize,
        }
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
