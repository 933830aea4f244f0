//! What a flat parameter vector means: which tensor lies where.
//!
//! Parameters travel as one flat `f32` vector. Two nodes may average only if every index means the same parameter to
//! both, so the layout sorts tensors by name and has a digest that peers compare.

/// One tensor of a model inside the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name, as in the safetensors file.
    pub name: String,
    /// Its dimensions, row-major.
    pub shape: Vec<usize>,
    /// Index of its first element in the flat vector.
    pub offset: usize,
}

impl TensorSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements' indices in the flat vector.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// All tensors of a model, sorted by name, back to back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLayout {
    tensors: Vec<TensorSpec>,
    parameters: usize,
    digest: [u8; 32],
}

impl ModelLayout {
    /// Lays out tensors given as (name, shape), in any order.
    ///
    /// # Panics
    /// When two tensors share a name: that is a mistake in a model's definition, never input.
    pub fn new(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> ModelLayout {
        let mut named: Vec<_> = tensors.into_iter().collect();
        named.sort();
        assert!(named.windows(2).all(|pair| pair[0].0 != pair[1].0), "two tensors of one name");
        let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 model layout");
        let mut parameters = 0;
        let tensors = named
            .into_iter()
            .map(|(name, shape)| {
                hasher.update(format!("{name} {shape:?}\n").as_bytes());
                let tensor = TensorSpec { name, shape, offset: parameters };
                parameters += tensor.len();
                tensor
            })
            .collect();
        ModelLayout { tensors, parameters, digest: *hasher.finalize().as_bytes() }
    }

    /// The tensors, sorted by name.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorSpec> {
        let index = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[index])
    }

    /// Length of the flat vector.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// BLAKE3 over names and shapes: equal exactly where two flat vectors may be averaged.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_definition_does_not_matter() {
        let tensors = [("b".to_owned(), vec![2, 3]), ("a".to_owned(), vec![4])];
        let forward = ModelLayout::new(tensors.clone());
        let backward = ModelLayout::new(tensors.into_iter().rev());
        assert_eq!(forward, backward);
        assert_eq!(forward.parameters(), 10);
        assert_eq!(forward.tensor("b").map(TensorSpec::range), Some(4..10));
        assert_eq!(forward.tensor("c"), None);
    }

    #[test]
    fn another_shape_is_another_digest() {
        let one = ModelLayout::new([("a".to_owned(), vec![2, 3])]);
        let other = ModelLayout::new([("a".to_owned(), vec![3, 2])]);
        assert_ne!(one.digest(), other.digest());
    }
}
