//! Names of files that somebody else has chosen: what could leave its folder, or no system can store, is refused.

/// Names that Windows keeps for devices, with any extension.
const DEVICES: [&str; 22] = [
    "con", "prn", "aux", "nul", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9", "lpt1", "lpt2",
    "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
];

/// What a file name takes on usual file systems, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Folders in folders: object stores have no folders, so a key may hold any number of slashes. A guess.
const PARTS_MAX: usize = 32;

/// Whether a text is the name of a file or folder everywhere: one part, no device, nothing that leads elsewhere.
pub(crate) fn is_safe(name: &str) -> bool {
    // Keys of object stores often have colons (times of day), which Windows alone does not store.
    let is_windows = |character: char| cfg!(windows) && matches!(character, ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let is_bad = |character: char| character.is_control() || matches!(character, '/' | '\\') || is_windows(character);
    let is_drive = name.as_bytes().get(1) == Some(&b':');
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !matches!(name, "." | "..")
        && !name.contains(is_bad)
        && !is_drive
        && !name.ends_with(['.', ' '])
        && !DEVICES.contains(&stem.as_str())
}

/// Whether a text is a path below a folder, with slashes: every part of it is a safe name.
pub(crate) fn is_safe_path(path: &str) -> bool {
    path.split('/').count() <= PARTS_MAX && path.split('/').all(is_safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_else() {
        for path in ["a", "a/b.txt", ".hidden", "größe/雀", "a..b", "log-12:30.txt", "console.txt", "a b", "b+ü.jsonl"]
        {
            assert!(is_safe_path(path), "{path}");
        }
        let long = "x".repeat(256);
        let deep = "a/".repeat(40);
        for path in [
            "",
            "/a",
            "a//b",
            "a/",
            "..",
            "a/../b",
            ".",
            "a\\b",
            "C:",
            "c:/a",
            "a\0",
            "a\n",
            "nul",
            "CON.txt",
            "aux .txt",
            "a.",
            "a ",
            "com1.tar.gz",
            &long,
            &deep,
        ] {
            assert!(!is_safe_path(path), "{path:?}");
        }
    }
}
