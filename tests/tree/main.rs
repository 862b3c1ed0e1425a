//! Checks of the source tree that neither the compiler nor clippy makes.
//!
//! - [`walls`]: which crate may depend on which, and which one may name a vendor's library
//! - [`imports`]: no import cycle among sibling modules, at any depth
//! - [`links`]: links of documents to files and headings lead somewhere
//! - [`names`]: a type name has one meaning
//! - [`paths`]: the documents name files that exist
//! - [`state`]: each kind of state file has one of an older and of a newer release
//! - [`words`]: the banned words

mod imports;
mod links;
mod names;
mod paths;
mod sources;
mod state;
mod walls;
mod words;

/// Fails with all problems, a line each.
#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}\n", problems.len(), problems.join("\n"));
}
