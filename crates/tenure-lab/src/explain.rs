//! `tenure lab ls` and `tenure lab explain`.

use std::fmt::Write as _;

use serde::Serialize;
use tenure_forms::{FORMS, Form};
use tenure_model::lab::pinned;

use crate::report::{print, short, table, tell, wrapped};

#[derive(clap::Args, Debug)]
pub(crate) struct LsArgs {
    /// For programs
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The form; see `tenure lab ls`
    #[arg(value_parser = crate::form_named)]
    form: &'static Form,
}

/// A form for programs.
#[derive(Serialize)]
struct Row {
    v: u32,
    name: &'static str,
    acquires: &'static str,
    releases: &'static str,
    breaks: &'static str,
}

pub(crate) fn ls(args: &LsArgs) -> u8 {
    if args.json {
        for form in FORMS {
            let Form { name, acquires, releases, breaks, .. } = *form;
            let row = Row { v: 1, name, acquires, releases, breaks };
            tell!("{}", serde_json::to_string(&row).expect("a row of texts"));
        }
        return 0;
    }
    let mut rows = vec![vec!["FORM".to_owned(), "WHAT BREAKS".to_owned()]];
    rows.extend(FORMS.iter().map(|form| vec![form.name.to_owned(), form.breaks.to_owned()]));
    print(&table(&rows));
    tell!("\nMore: tenure lab explain FORM; all of them checked: tenure lab check");
    0
}

pub(crate) fn explain(args: &Args) -> u8 {
    print(&page(args.form));
    0
}

fn page(form: &Form) -> String {
    let mut page = format!(
        "{}\n\n{}{}",
        form.name,
        wrapped(&format!("acquire: {}", form.acquires), "  "),
        wrapped(&format!("release: {}", form.releases), "  ")
    );
    let _ = write!(page, "\n{}", wrapped(form.how, ""));
    let changed = form
        .after
        .map_or_else(|| "What was before it".to_owned(), |after| format!("What it changed in {after}"));
    let _ = write!(page, "\n{changed}\n{}", wrapped(form.changed, "  "));
    let _ = writeln!(page, "\nWhat it keeps and breaks (tenure lab check {})", form.name);
    for (promise, pin, when) in pinned::of(form.name).promises {
        let when = if when.is_empty() { String::new() } else { format!(": {when}") };
        let _ = writeln!(page, "  {:<13} {}{when}", promise.name(), short(*pin));
    }
    let slips: Vec<_> = form.slips().collect();
    if !slips.is_empty() {
        let _ = writeln!(page, "\nSlips in the documents' listings");
        for slip in slips {
            let _ = write!(page, "{}", wrapped(&format!("written: {}", slip.written), "  "));
            let _ = write!(page, "{}", wrapped(&format!("effect: {}", slip.effect), "    "));
            let _ = write!(page, "{}", wrapped(&format!("meant: {}", slip.meant), "    "));
        }
    }
    let _ = write!(page, "\nWhat to do\n{}", wrapped(form.advice, "  "));
    for next in FORMS.iter().filter(|next| next.after == Some(form.name)) {
        let _ = write!(page, "\nWhat {} changed in it\n{}", next.name, wrapped(next.changed, "  "));
    }
    let end = if form.steps.is_some() { "See it break" } else { "See a stale writer refused" };
    let _ = writeln!(page, "\n{end}: tenure lab replay {}", form.name);
    page
}
