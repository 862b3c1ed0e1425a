//! Files of state of other releases: each kind has one.

use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::{product, root};

#[test]
fn each_kind_of_state_has_a_file_of_an_older_and_of_a_newer_release() {
    static KIND: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"(?:const KIND: &'static str =|:) "([a-z-]+)"(?:;|, versions)"#).unwrap()
    });
    let sources = product();
    let kinds = || {
        sources.iter().flat_map(|source| KIND.captures_iter(&source.code)).map(|found| found[1].to_owned())
    };
    let files = kinds()
        .flat_map(|kind| ["older", "newer"].map(|release| format!("tests/data/state/{release}/{kind}.json")));
    let missing = files.filter(|file| !root().join(file).exists());
    report(missing.map(|file| format!("there is no {file}")).collect());
    assert!(kinds().count() >= 9, "the kinds are found");
}
