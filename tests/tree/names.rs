//! A type name has one meaning in the whole workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::sources::product;

/// Names that may be declared twice, because the field has no better one for either.
const MOST: usize = 14;

#[test]
fn a_type_name_means_one_thing() {
    static TYPE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?m)^(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type|union) (\w+)").unwrap()
    });
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in product() {
        for found in TYPE.captures_iter(&source.code) {
            places.entry(found[1].to_owned()).or_default().insert(source.path.clone());
        }
    }
    places.retain(|_, paths| paths.len() > 1);
    let lines: Vec<String> = places.iter().map(|(name, paths)| format!("{name}: {paths:?}")).collect();
    assert!(lines.len() <= MOST, "{} type names with several meanings:\n{}\n", lines.len(), lines.join("\n"));
}
