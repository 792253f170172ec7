//! Cases as lines of text.

/// Returns the two sides of each line, which `=>` separates. Skips empty lines and comments.
pub(crate) fn rows(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim);
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    rows.map(|row| {
        let (given, expected) = row.split_once("=>").unwrap_or_else(|| panic!("{row}"));
        (given.trim(), expected.trim())
    })
}
