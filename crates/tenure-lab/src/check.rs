//! `tenure lab check`: everything that can happen with a form.

use serde::Serialize;
use tenure_forms::{FORMS, Form};
use tenure_model::lab::pinned::{self, Pin};
use tenure_model::lab::{Promise, Verdict, diagram, verdicts};

use crate::LabError;
use crate::report::{long, print, progress, short, table, tell, wrapped};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The form; without one: the table of all
    #[arg(value_parser = crate::form_named)]
    form: Option<&'static Form>,
    /// Draw how this promise is broken; otherwise the one that the form is known for
    #[arg(long, value_name = "NAME", value_parser = crate::promise_named, requires = "form")]
    promise: Option<Promise>,
    /// For programs: a line for each form and promise
    #[arg(long, conflicts_with = "promise")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<u8, LabError> {
    if let (Some(form), Some(promise)) = (args.form, args.promise)
        && !promise.concerns(form)
    {
        return Err(LabError::Usage(format!("{} means nothing for {}", promise.name(), form.name)));
    }
    let mut found = Vec::new();
    for form in FORMS.into_iter().filter(|form| args.form.is_none_or(|one| one == *form)) {
        progress(&format!("checking {}", form.name));
        found.push((form, verdicts(form)));
    }
    let expected = found.iter().all(|(form, verdicts)| {
        verdicts
            .iter()
            .all(|(promise, verdict)| pinned::of(form.name).pin(*promise) == Some(Pin::of(verdict)))
    });
    match (args.json, args.form) {
        (true, _) => json(&found),
        (false, Some(form)) => one(form, &found[0].1, args.promise),
        (false, None) => all(&found),
    }
    if !expected {
        eprintln!("tenure: this is not what is expected of these forms; please report it");
    }
    Ok(u8::from(!expected))
}

fn all(found: &[(&'static Form, Vec<(Promise, Verdict)>)]) {
    let (columns, others) = Promise::ALL.split_at(Promise::COLUMNS.len());
    let cell = |verdicts: &[(Promise, Verdict)], promise: Promise| {
        let verdict = verdicts.iter().find(|(one, _)| *one == promise);
        verdict.map_or_else(|| "-".to_owned(), |(_, verdict)| short(Pin::of(verdict)))
    };
    for promises in [columns, others] {
        let head =
            std::iter::once("FORM".to_owned()).chain(promises.iter().map(|one| one.name().to_uppercase()));
        let mut rows = vec![head.collect::<Vec<_>>()];
        for (form, verdicts) in found {
            if promises.iter().any(|promise| promise.concerns(form)) {
                let cells = promises.iter().map(|promise| cell(verdicts, *promise));
                rows.push(std::iter::once(form.name.to_owned()).chain(cells).collect());
            }
        }
        tell!("{}", table(&rows));
    }
    for promise in Promise::ALL {
        tell!("{:<13} {}", promise.name(), promise.words());
    }
    let legend = "kept: in every state of a small world (two callers, a death, time that passes wherever it likes, clocks of \
                  the timestamp forms that differ). BROKEN in N: the shortest way has N steps; `tenure lab check FORM \
                  --promise NAME` draws it. For own-identity, cad draws its tokens from a small range, as the documents \
                  do; with 128 random bits it is kept.";
    print(&format!("\n{}", wrapped(legend, "")));
}

fn one(form: &'static Form, verdicts: &[(Promise, Verdict)], promise: Option<Promise>) {
    tell!("{}: {}\n", form.name, form.breaks);
    for (promise, verdict) in verdicts {
        print(&long(*promise, verdict));
    }
    if form.steps.is_none() {
        let how = format!(
            "By the claims and ledgers that run in production, in the scopes {}; loss-survived in {}. All scopes, and the \
             mistakes that would be seen: cargo xtask check",
            pinned::TENURE_SCOPES.join(", "),
            pinned::FORGETFUL_SCOPE
        );
        print(&format!("\n{}", wrapped(&how, "")));
    }
    let promise = promise.unwrap_or_else(|| pinned::of(form.name).headline);
    match verdicts.iter().find(|(one, _)| *one == promise) {
        Some((_, Verdict::Broken(broken))) => {
            tell!("\n{}", diagram::draw(form, promise, broken));
            tell!("On a real server: tenure lab replay {} --promise {}", form.name, promise.name());
        }
        Some((_, Verdict::InScope(scope, counterexample))) => {
            tell!("\n{}", tenure_model::diagram::draw(scope, counterexample).trim_end());
        }
        _ => {}
    }
}

/// A verdict for programs.
#[derive(Serialize)]
struct Row<'a> {
    v: u32,
    form: &'a str,
    promise: &'a str,
    verdict: &'a str,
    states: Option<usize>,
    steps: Option<usize>,
    what: Option<&'a str>,
}

fn json(found: &[(&'static Form, Vec<(Promise, Verdict)>)]) {
    for (form, verdicts) in found {
        for (promise, verdict) in verdicts {
            let (name, states, steps, what) = match verdict {
                Verdict::Kept { states } => ("kept", Some(*states), None, None),
                Verdict::Broken(broken) => {
                    ("broken", None, Some(broken.actions.len()), Some(broken.what.as_str()))
                }
                Verdict::InScope(_, found) => {
                    ("broken", None, Some(found.actions.len()), Some(found.what.as_str()))
                }
                Verdict::NoTokens => ("no-tokens", None, None, None),
            };
            let row =
                Row { v: 1, form: form.name, promise: promise.name(), verdict: name, states, steps, what };
            tell!("{}", serde_json::to_string(&row).expect("a row of texts and numbers"));
        }
    }
}
