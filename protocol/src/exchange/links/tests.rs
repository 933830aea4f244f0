//! Links are made, used in turn, forgotten.
