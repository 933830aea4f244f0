//! What a flat parameter vector means: which tensor lies where.
//!
//! Parameters travel as one flat `f32` vector. Two nodes may average only if every index means the same parameter to
//! both, so a layout has a fixed order (its model's, else that of names) and a digest that peers compare.

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

/// All tensors of a model, back to back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLayout {
    tensors: Vec<TensorSpec>,
    /// Places among `tensors`, sorted by their names.
    by_name: Vec<usize>,
    parameters: usize,
    digest: [u8; 32],
}

impl ModelLayout {
    /// Lays out tensors given as (name, shape) in the order of their names, whatever the order they come in.
    ///
    /// # Panics
    /// When two tensors share a name: that is a mistake in a model's definition, never input.
    pub fn new(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> ModelLayout {
        let mut named: Vec<_> = tensors.into_iter().collect();
        named.sort();
        ModelLayout::in_order(named)
    }

    /// Lays out tensors given as (name, shape) in the order they come in: that in which a model computes with them, so that
    /// consecutive layers lie side by side.
    ///
    /// # Panics
    /// As [`ModelLayout::new`].
    pub fn in_order(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> ModelLayout {
        let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 model layout");
        let mut parameters = 0;
        let place = |(name, shape): (String, Vec<usize>)| {
            hasher.update(format!("{name} {shape:?}\n").as_bytes());
            let tensor = TensorSpec { name, shape, offset: parameters };
            parameters += tensor.len();
            tensor
        };
        let tensors: Vec<TensorSpec> = tensors.into_iter().map(place).collect();
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_by(|left, right| tensors[*left].name.cmp(&tensors[*right].name));
        let twice = by_name.windows(2).any(|pair| tensors[pair[0]].name == tensors[pair[1]].name);
        assert!(!twice, "two tensors of one name");
        ModelLayout { tensors, by_name, parameters, digest: *hasher.finalize().as_bytes() }
    }

    /// The same tensors in the order of their names: that of flat vectors before protocol version 12.
    pub fn by_name(&self) -> ModelLayout {
        ModelLayout::new(self.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())))
    }

    /// The tensors, in their order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Which of [`ModelLayout::tensors`] has that name.
    pub fn position(&self, name: &str) -> Option<usize> {
        let found = self.by_name.binary_search_by(|place| self.tensors[*place].name.as_str().cmp(name));
        found.ok().map(|found| self.by_name[found])
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorSpec> {
        self.position(name).map(|place| &self.tensors[place])
    }

    /// Length of the flat vector.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// BLAKE3 over names and shapes in their order: equal exactly where two flat vectors may be averaged.
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
    fn tensors_are_found_by_name_in_any_order_and_the_order_is_part_of_the_digest() {
        let tensors = ["c", "a", "b"].map(|name| (name.to_owned(), vec![2]));
        let layout = ModelLayout::in_order(tensors);
        let names: Vec<&str> = layout.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["c", "a", "b"]);
        for (place, name) in names.into_iter().enumerate() {
            assert_eq!((layout.position(name), layout.tensor(name)), (Some(place), Some(&layout.tensors()[place])));
        }
        assert_eq!(layout.tensor("d"), None);
        let sorted = layout.by_name();
        assert_eq!(sorted.tensor("a").map(TensorSpec::range), Some(0..2));
        assert_ne!(sorted.digest(), layout.digest());
    }

    #[test]
    fn another_shape_is_another_digest() {
        let one = ModelLayout::new([("a".to_owned(), vec![2, 3])]);
        let other = ModelLayout::new([("a".to_owned(), vec![3, 2])]);
        assert_ne!(one.digest(), other.digest());
    }
}
