//! The command line of a program that measures groups and renders documents.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};

use crate::group::Group;
use crate::record::Record;
use crate::render::print::print;
use crate::render::{BEGIN, Sections, fill};
use crate::turns::Run;

/// A package of benches.
pub struct Program {
    /// Its name.
    pub package: &'static str,
    /// The path of its workspace, with the figures in `benches/results`.
    pub workspace: &'static str,
    /// The text of the workspace's `Cargo.lock`.
    pub lock: &'static str,
    /// What it measures.
    pub groups: &'static [Group],
    /// Renders the sections of the pages.
    pub sections: fn(&Path) -> Result<Sections>,
    /// The pages with rendered sections.
    pub pages: &'static [&'static str],
}

impl Program {
    /// Runs the command line.
    ///
    /// # Errors
    /// If a result is not as expected, a server cannot be started, or a file cannot be written.
    pub fn run(&self) -> Result<()> {
        let args = self.command().get_matches();
        let name: &String = args.get_one("group").context("the group has a default")?;
        let group = self.groups.iter().find(|group| group.name == name);
        let group = group.context("clap accepts only these names")?;
        let show = |record: &Record| println!("{}", print(group.name, record, (group.goals)()));
        if args.get_flag("render") {
            let records = Record::load_all(group.name, Path::new(self.workspace))?;
            records.iter().for_each(show);
            return self.render();
        }
        let only = args.get_one::<String>("only").map(String::as_str);
        let mut run = Run::new(only);
        (group.measure)(&mut run)?;
        let record = Record::new(self.lock, group.crates, run.server, run.results);
        show(&record);
        if only.is_some() {
            return Ok(());
        }
        record.save(group.name, Path::new(self.workspace))?;
        self.render()
    }

    /// Returns the paths and texts of the pages, rendered from the committed records.
    ///
    /// # Errors
    /// If a record or a page cannot be read, or a page's sections differ from the rendered ones.
    pub fn documents(&self) -> Result<Vec<(&'static str, String)>> {
        let workspace = Path::new(self.workspace);
        let rendered = (self.sections)(workspace)?;
        let page = |&path| {
            let text = fs::read_to_string(workspace.join(path))
                .with_context(|| format!("cannot read {path}"))?;
            Ok((path, fill(&text, &rendered).with_context(|| path)?))
        };
        let pages: Vec<_> = self.pages.iter().map(page).collect::<Result<_>>()?;
        let shown: usize = pages
            .iter()
            .map(|(_, text)| text.matches(BEGIN).count())
            .sum();
        ensure!(
            shown == rendered.len(),
            "the pages have {shown} sections, and {} are rendered",
            rendered.len()
        );
        Ok(pages)
    }

    fn render(&self) -> Result<()> {
        for (path, text) in self.documents()? {
            let file = Path::new(self.workspace).join(path);
            fs::write(file, text).with_context(|| format!("cannot write {path}"))?;
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let groups = self.groups.iter();
        let groups: Vec<_> = groups
            .map(|group| PossibleValue::new(group.name).help(group.about))
            .collect();
        Command::new(self.package)
            .about(
                "Measures all contestants in turns, prints Markdown, writes the figures to benches/results, and renders the documents \
                 that show them",
            )
            .arg(
                Arg::new("group")
                    .help("What to measure")
                    .default_value(self.groups[0].name)
                    .value_parser(groups),
            )
            .arg(
                Arg::new("only")
                    .long("only")
                    .value_name("TEXT")
                    .help("Measure only scenarios whose names contain TEXT, and write no files. Cells of the surface have names like \"10000 64 allowed 1\""),
            )
            .arg(
                Arg::new("render")
                    .long("render")
                    .action(ArgAction::SetTrue)
                    .conflicts_with("only")
                    .help("Measure nothing: print the group's figures in benches/results, and render the documents again"),
            )
    }
}
