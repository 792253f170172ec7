//! The plot is well-formed, complete, and within its frame.

use std::fs;

use roxmltree::{Document, Node};

use crate::common::{REAL_TRACE, stdout_of};

const RED: &str = "#CE2D2D";

/// Plots a trace and checks the properties that every plot has.
fn plot(args: &[&str], trace: impl AsRef<[u8]>) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let replay = ["replay", "--output", "jsonl", "--plot", path];
    let rows = stdout_of(&[&replay, args].concat(), trace);
    assert!(rows.starts_with("{\"at_us\":"), "{rows}");
    let svg = fs::read_to_string(file.path()).unwrap();
    let document = Document::parse(&svg).unwrap();
    let size = |name| number(document.root_element(), name);
    let width = size("width");
    let height = size("height");
    for node in document.descendants().filter(Node::is_element) {
        for (name, most) in [("x", width), ("y", height)] {
            let fits = node.attribute(name).is_none() || (0.0..=most).contains(&number(node, name));
            assert!(fits, "{node:?} is out of the frame");
        }
        let is_text = node.has_tag_name("text");
        assert!(
            !is_text || number(node, "font-size") >= 9.0,
            "{node:?} is too small"
        );
        for pair in node
            .attribute("points")
            .unwrap_or_default()
            .split_whitespace()
        {
            let (x, y) = pair.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!(
                (0.0..=width).contains(&x) && (0.0..=height).contains(&y),
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
    let nodes = |tag| {
        document
            .descendants()
            .filter(move |node| node.has_tag_name(tag))
    };
    let label = |text: &str| {
        let is_label = |node: &Node<'_, '_>| node.text().unwrap().trim() == text;
        nodes("text").find(is_label).map(|node| number(node, "x"))
    };
    let marks = nodes("polyline").filter(|node| node.attribute("stroke") == Some(RED));
    let second = |mark: Node<'_, '_>| {
        let (x, _) = mark.attribute("points").unwrap().split_once(',').unwrap();
        let one = label("1m").unwrap();
        let two = label("2m").unwrap();
        (60.0 + 60.0 * (x.parse::<f64>().unwrap() - one) / (two - one)).round() as u32
    };
    marks.map(second).collect()
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
            assert_eq!(denied_at(&svg), denied, "{args:?}");
        }
        let has_marks = denied.is_none_or(|denied| !denied.is_empty());
        assert_eq!(svg.contains("denied requests"), has_marks, "{args:?}");
    }
}

#[test]
fn extreme_traces_can_be_plotted() {
    let row = |i| format!("{}.{:02},client-{}\n", i / 50, i % 50 * 2, i * i % 30);
    let many = "at,key\n".to_owned() + &(0..20_000).map(row).collect::<String>();
    let far = "at,key\n0,a\n9007199254,a\n9007199254.740991,a\n9007199254.740991,a\n";
    let hostile = "at,key\n1,<&\">\n1,\"\x00\x1b[31m\u{202e}\"\n1,-\n1,]]>\n1,<&\">\n1,<&\">\n";
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
            "2/60s",
            "1/1us",
            "1/9007199254740991us",
            "4503599627370496/1d",
            "2/1s,3/1h~1m,5/100d~1m",
        ] {
            for count in ["admitted", "attempts"] {
                let svg = plot(&["--limit", limits, "--counting", count], trace);
                assert!(texts(&svg).len() > 8 && svg.len() < 1 << 20);
            }
        }
    }
    let title = &texts(&plot(&["--limit", "2/60s"], hostile))[0];
    assert_eq!(title, "<&\"> exceeds 2/1m: 1 of 3 requests denied");
    // The key as the summary prints it.
    let printed = r"\x00\x1b[31m\xe2\x80\xae";
    let title = &texts(&plot(&["--limit", "2/60s", "--key", printed], hostile))[0];
    let expected = format!("{printed} stays within 2/1m: at most 50 % used, 1 request");
    assert_eq!(*title, expected);
}

#[test]
fn a_stream_gives_the_same_plot_as_a_file() {
    let trace = fs::read(REAL_TRACE).unwrap();
    let from_file = plot(&["--limit", "30/60s", REAL_TRACE], "");
    let from_stream = plot(&["--limit", "30/60s", "-"], trace);
    assert!(from_file == from_stream);
    let committed = include_str!("../../../docs/replay.svg");
    assert!(
        from_file == committed,
        "the README's plot differs: limiter replay --plot"
    );
}
