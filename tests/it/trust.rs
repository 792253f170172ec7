//! The tables of the lines to trust in `docs/architecture.md`.

use std::fs;
use std::path::Path;

#[test]
fn the_lines_to_trust_are_counted_and_quoted() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = fs::read_to_string(docs.join("architecture.md")).unwrap();
    let (_, section) = page.split_once("## The lines to trust").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let read = |link: &str| {
        let (_, file) = link.split_once("](").unwrap();
        let (file, _) = file.split_once(')').unwrap();
        fs::read_to_string(docs.join(file)).unwrap()
    };

    let mut lines = 0;
    for row in section.lines().filter(|line| line.starts_with("| [")) {
        let stated = row.split('|').nth(2).unwrap().trim();
        let counted = read(row).lines().count();
        lines += counted;
        let stated: usize = stated.parse().unwrap();
        assert!(counted.abs_diff(stated) <= 50, "{row}: {counted} lines");
    }
    let stated = "all 2,500 lines";
    assert!(
        section.contains(stated) && lines.abs_diff(2_500) <= 150,
        "{lines} lines, not {stated}"
    );

    for store in ["Redis", "memory", "Postgres"] {
        let row = section
            .lines()
            .find(|line| line.starts_with(&format!("| {store} |")));
        let cells = row.unwrap().split(" | ").skip(1).collect::<Vec<_>>();
        assert_eq!(cells.len(), 3, "{store}: counts, denies, comes between");
        for cell in cells {
            let mut quotes = cell
                .split('`')
                .skip(1)
                .step_by(2)
                .zip(cell.split('`').skip(2).step_by(2));
            assert!(
                quotes.all(|(code, place)| read(place).contains(code)),
                "{cell}"
            );
        }
    }
}
