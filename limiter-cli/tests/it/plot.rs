//! The plot is well-formed, complete, and within its frame.

use std::fs;

use roxmltree::{Document, Node};

use crate::common::{REAL_TRACE, stdout_of};

const RED: &str = "#CE2D2D";

/// Plots a trace and checks the properties that every plot has.
fn plot(args: &[&str], trace: impl AsRef<[u8]>) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rows = stdout_of(
        &[
            &[
                "replay",
                "--output",
                "jsonl",
                "--plot",
                file.path().to_str().unwrap(),
            ],
            args,
        ]
        .concat(),
        trace,
    );
    assert!(rows.starts_with("{\"at_us\":"), "{rows}");
    let svg = fs::read_to_string(file.path()).unwrap();
    let document = Document::parse(&svg).unwrap();
    let size = |name| number(document.root_element(), name);
    for node in document.descendants().filter(Node::is_element) {
        for (name, most) in [("x", size("width")), ("y", size("height"))] {
            if node.attribute(name).is_some() {
                assert!(
                    (0.0..=most).contains(&number(node, name)),
                    "{node:?} is out of the frame"
                );
            }
        }
        if node.has_tag_name("text") {
            assert!(
                number(node, "font-size") >= 9.0,
                "{node:?} is too small to read"
            );
        }
        for pair in node
            .attribute("points")
            .unwrap_or_default()
            .split_whitespace()
        {
            let (x, y) = pair.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!(
                x >= 0.0 && x <= size("width") && y >= 0.0 && y <= size("height"),
                "{pair}"
            );
        }
    }
    svg
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).unwrap();
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| node.text().unwrap_or_default().trim().to_owned())
        .collect()
}

/// Returns the times of the marks of denied requests, in seconds. The labels of the time axis give the scale.
fn denied_at(svg: &str) -> Vec<u32> {
    let document = Document::parse(svg).unwrap();
    let label = |text: &str| {
        let is_label =
            |node: &Node<'_, '_>| node.has_tag_name("text") && node.text().unwrap().trim() == text;
        number(document.descendants().find(is_label).unwrap(), "x")
    };
    let (one, two) = (label("1m"), label("2m"));
    let is_mark = |node: &Node<'_, '_>| {
        node.has_tag_name("polyline") && node.attribute("stroke") == Some(RED)
    };
    let marks = document
        .descendants()
        .filter(is_mark)
        .map(|mark| mark.attribute("points").unwrap());
    let marks = marks.map(|points| points.split_once(',').unwrap().0.parse::<f64>().unwrap());
    marks
        .map(|x| (60.0 + 60.0 * (x - one) / (two - one)).round() as u32)
        .collect()
}

const SHORT: &str = "at,key\n0,k\n20,k\n35,k\n70,k\n75,k\n85,k\n90,k\n150,k\n";

#[test]
fn a_plot_shows_the_key_the_times_and_the_denials() {
    for (args, trace, expected, denied) in [
        (
            &["--limit", "3/60s"][..],
            SHORT,
            &[
                "k exceeds 3/1m: 2 of 8 requests denied",
                "0 to 3m 36s",
                "demand, up to 167 % of the limit",
                "used of 3/1m",
                "100 %",
                "denied requests",
                "All keys, per 2s: 6 requests allowed, 2 denied",
                "Keys denied: 1 of 1. Most denied first, then closest to the limit (red: some denied)",
                "k: 2 denied",
            ][..],
            Some(&[75, 90][..]),
        ),
        // The request at 35 merges with that at 20, which then counts until 95.
        (
            &["--limit", "3/60s~1m"],
            SHORT,
            &[
                "k exceeds 3/1m~1m: 4 of 8 requests denied",
                "used of 3/1m~1m",
                "k: 4 denied",
            ],
            Some(&[70, 75, 85, 90]),
        ),
        // A peak that is shorter than a column of the plot is kept.
        (
            &["--limit", "10/1us", "--limit", "100/100s"],
            "at,key,cost\n20,k,5\n20.000001,k,9\n20.000001,k,4\n100,k,1\n",
            &[
                "demand, up to 130 % of the limit",
                "used of 10/1us",
                "used of 100/100s",
                "100 %",
                "k: 1 denied",
            ],
            Some(&[20]),
        ),
        (
            &["--limit", "30/60s", REAL_TRACE],
            "",
            &[
                "75.97.9.59 exceeds 30/1m: 146 of 273 requests denied",
                "longest run of denials: 18 May 2015 08:05:28 UTC to 18 May 2015 08:07:29 UTC",
                "demand, up to 360 % of the limit",
                "All keys, per 1h: 9,544 requests allowed, 456 denied",
                "Keys denied: 31 of 1,753. Most denied first, then closest to the limit (red: some denied)",
                "130.237.218.86: 145 denied",
                "19 May",
            ],
            None,
        ),
        (
            &["--limit", "150/60s", "--key", "66.249.73.135", REAL_TRACE],
            "",
            &[
                "66.249.73.135 stays within 150/1m: at most 10 % used, 482 requests",
                "Keys denied: 0 of 1,753. Most denied first, then closest to the limit (red: some denied)",
                "75.97.9.59: 72 %",
            ],
            Some(&[]),
        ),
    ] {
        let svg = plot(args, trace);
        let texts = texts(&svg);
        for text in expected {
            assert!(
                texts.iter().any(|found| found == text),
                "no \"{text}\" in {texts:?}"
            );
        }
        if let Some(denied) = denied {
            assert_eq!(
                if denied.is_empty() {
                    Vec::new()
                } else {
                    denied_at(&svg)
                },
                denied,
                "{args:?}"
            );
        }
        assert_eq!(
            svg.contains("denied requests"),
            denied.is_none_or(|denied| !denied.is_empty()),
            "{args:?}"
        );
    }
}

#[test]
fn extreme_traces_can_be_plotted() {
    let many = stdout_of(
        &[
            "generate", "--rows", "20000", "--keys", "30", "--rate", "50",
        ],
        "",
    );
    let far = "at,key\n0,a\n9007199254,a\n9007199254.740991,a\n9007199254.740991,a\n";
    let hostile = "at,key\n1,<&\">\n1,\"\x00\x1b[31m\u{202e}\"\n1,\n1,]]>\n1,<&\">\n1,<&\">\n";
    let mixed = "at,key,cost,op\n5,k,2,\n1,k,9,record\n6,k,1,peek\n7,k,,reset\n3,k,1,\n3,k,99,\n3,k,0,\n9,l,1,\n";
    let traces = [
        "at,key\n0,k\n",
        "at,key\n1700000000,k\n1700000000,k\n1700000000,k\n",
        &many,
        far,
        hostile,
        mixed,
    ];
    for trace in traces {
        for limits in [
            &["--limit", "2/60s"][..],
            &["--limit", "1/1us"],
            &["--limit", "1/9007199254740991us"],
            &["--limit", "4503599627370496/1d"],
            &[
                "--limit",
                "2/1s",
                "--limit",
                "3/1h~1m",
                "--limit",
                "5/100d~1m",
            ],
        ] {
            for count in ["admitted", "attempts"] {
                let svg = plot(&[limits, &["--counting", count]].concat(), trace);
                assert!(texts(&svg).len() > 8);
                assert!(svg.len() < 1 << 20, "{} bytes", svg.len());
            }
        }
    }
    let title = &texts(&plot(&["--limit", "2/60s"], hostile))[0];
    assert_eq!(title, "<&\"> exceeds 2/1m: 1 of 3 requests denied");
    // The key as the summary prints it.
    let printed = r"\x00\x1b[31m\xe2\x80\xae";
    let title = &texts(&plot(&["--limit", "2/60s", "--key", printed], hostile))[0];
    assert_eq!(
        *title,
        format!("{printed} stays within 2/1m: at most 50 % used, 1 request")
    );
}

#[test]
fn a_stream_gives_the_same_plot_as_a_file() {
    let trace = fs::read(REAL_TRACE).unwrap();
    let from_file = plot(&["--limit", "30/60s", REAL_TRACE], "");
    let from_stream = plot(&["--limit", "30/60s", "-"], trace);
    assert!(from_file == from_stream);
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/replay.svg");
    assert!(
        from_file == fs::read_to_string(committed).unwrap(),
        "the README's plot differs: limiter replay --plot"
    );
}
