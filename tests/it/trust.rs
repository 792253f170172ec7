//! The table of the lines to trust in `docs/architecture.md`.

use std::fs;
use std::path::Path;

#[test]
fn the_lines_to_trust_are_counted_and_quoted() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = fs::read_to_string(docs.join("architecture.md")).unwrap();
    let (_, section) = page.split_once("## The lines to trust").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut lines = 0;
    for row in section.lines().filter(|line| line.starts_with("| [")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (_, file) = cells[1].split_once("](").unwrap();
        let text = fs::read_to_string(docs.join(file.trim_end_matches(')'))).unwrap();
        let counted = text.lines().count();
        lines += counted;
        let stated: usize = cells[2].parse().unwrap();
        assert!(counted.abs_diff(stated) <= 50, "{row}: {counted} lines");
        assert!(text.contains(cells[3].trim_matches('`')), "{row}");
    }
    let stated = "about 1,900 lines";
    assert!(
        section.contains(stated) && lines.abs_diff(1_900) <= 150,
        "{lines} lines, not {stated}"
    );
}
