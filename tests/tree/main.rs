//! Checks of the source tree that neither the compiler nor clippy makes.
//!
//! - [`walls`]: which crate may depend on which, and which one may name a vendor's library
//! - [`imports`]: no import cycle among sibling modules, at any depth
//! - [`links`]: links of documents to files and headings lead somewhere
//! - [`logs`]: no log line has a field in the `Debug` form of Rust
//! - [`names`]: a type name has one meaning
//! - [`paths`]: the documents name files that exist
//! - [`prose`]: habits of prose that slow readers down
//! - [`size`]: the lid on the size of the code
//! - [`state`]: each kind of state file has one of an older and of a newer release
//! - [`words`]: the banned words

mod imports;
mod links;
mod logs;
mod names;
mod paths;
mod prose;
mod size;
mod sources;
mod state;
mod walls;
mod words;

/// Fails with all problems, a line each.
#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}\n", problems.len(), problems.join("\n"));
}
