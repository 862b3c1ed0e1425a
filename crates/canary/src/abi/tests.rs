//! Compares `kernels/abi.h` with `abi.rs`. The arguments of one kernel may be in the file of its check.

use std::collections::BTreeMap;

const CPP: &str = include_str!("../../../../kernels/abi.h");

/// Source text of `abi.rs` and of the checks, without their tests.
fn rust() -> String {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let checks = std::fs::read_dir(source.join("checks")).unwrap().map(|entry| entry.unwrap().path());
    let code = |path| std::fs::read_to_string(path).unwrap().split("#[cfg(test)]").next().unwrap().to_owned();
    checks.chain([source.join("abi.rs")]).map(code).collect()
}

/// Returns the text between `start` and `end`, and the remaining text.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end)
}

/// Removes `//` comments.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Structures with their fields in order. A field has a name, a type and a number of elements (empty if it is not an
/// array).
type Structures = BTreeMap<String, Vec<(String, String, String)>>;

fn cpp_structures() -> Structures {
    let text = without_comments(CPP);
    let mut rest = text.as_str();
    let mut found = Structures::new();
    while let Some((name, after)) = between(rest, "struct ", " {") {
        let (body, after) = after.split_once("};").unwrap();
        let fields = body.split(';').filter_map(|field| field.trim().split_once(' ')).map(|(kind, field)| {
            let (field, count) = field.split_once('[').unwrap_or((field, ""));
            (field.to_owned(), kind.to_owned(), count.trim_end_matches(']').to_owned())
        });
        found.insert(name.to_owned(), fields.collect());
        rest = after;
    }
    found
}

fn rust_structures() -> Structures {
    let text = without_comments(&rust());
    let mut rest = text.as_str();
    let mut found = Structures::new();
    while let Some((_, after)) = between(rest, "#[repr(C)]", "pub struct ") {
        let (name, after) = after.split_once(" {").unwrap();
        let (body, after) = after.split_once("\n}").unwrap();
        let fields =
            body.split(",\n").filter_map(|field| field.trim().split_once(": ")).map(|(field, kind)| {
                let kind = kind.trim_end_matches(',');
                let (kind, count) = match kind.strip_prefix('[').and_then(|kind| kind.split_once("; ")) {
                    Some((kind, count)) => (kind, count.trim_end_matches(']')),
                    None => (kind, ""),
                };
                (field.trim_start_matches("pub ").to_owned(), kind.to_owned(), count.to_owned())
            });
        found.insert(name.to_owned(), fields.collect());
        rest = after;
    }
    found
}

/// Both languages lay out fields by C's rules, so the same fields in the same order have the same offsets.
#[test]
fn structures_are_the_same_in_both() {
    let (cpp, mut rust) = (cpp_structures(), rust_structures());
    // The shape is a plain array in C++.
    assert!(rust.remove("TensorShape").is_some());
    assert!(cpp.len() >= 13 && cpp.values().all(|fields| !fields.is_empty()), "{cpp:?}");
    assert_eq!(cpp, rust);
}

/// Returns the values of C++ constants and enumerators by name.
fn cpp_numbers() -> BTreeMap<String, f64> {
    let text = without_comments(CPP);
    let mut found = BTreeMap::new();
    let mut rest = text.as_str();
    while let Some((head, after)) = between(rest, "enum ", "{") {
        let (body, after) = after.split_once('}').unwrap();
        for (i, item) in body.split(',').map(str::trim).filter(|item| !item.is_empty()).enumerate() {
            let (name, value) = item.split_once(" = ").unwrap_or((item, ""));
            let value = if value.is_empty() { i as f64 } else { worth(value, &found) };
            found.insert(name.to_owned(), value);
        }
        assert!(head.len() < 40, "{head}");
        rest = after;
    }
    for line in text.lines().filter_map(|line| line.strip_prefix("constexpr float ")) {
        for (name, value) in line.trim_end_matches(';').split(", ").filter_map(|item| item.split_once(" = "))
        {
            let value = worth(value.trim_end_matches('f'), &found);
            found.insert(name.to_owned(), value);
        }
    }
    found
}

/// Evaluates a number, a name, `n * (a + b)` or `n * a`.
fn worth(text: &str, known: &BTreeMap<String, f64>) -> f64 {
    let text = text.trim().trim_matches(['(', ')']);
    if let Some((left, right)) = text.split_once('*') {
        return worth(left, known) * worth(right, known);
    }
    if let Some((left, right)) = text.split_once('+') {
        return worth(left, known) + worth(right, known);
    }
    known.get(text).copied().unwrap_or_else(|| text.parse().unwrap())
}

/// Returns the numeric constants of `abi.rs` by name.
fn rust_numbers() -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for line in include_str!("../abi.rs").lines() {
        let constant = line.strip_prefix("pub const ").and_then(|line| line.split_once(": "));
        let Some((name, (kind, value))) =
            constant.and_then(|(name, rest)| Some((name, rest.split_once(" = ")?)))
        else {
            continue;
        };
        if !kind.starts_with('[') {
            let value = worth(value.trim_end_matches(';').trim_end_matches(" as u32"), &found);
            found.insert(name.to_owned(), value);
        }
    }
    found
}

#[test]
fn numbers_are_the_same_in_both() {
    use super::*;
    let cpp = cpp_numbers();
    let mut rust = rust_numbers();
    for (name, pattern) in [
        ("PATTERN_ARITHMETIC", Pattern::Arithmetic),
        ("PATTERN_CONSTANT", Pattern::Constant),
        ("PATTERN_ADDRESS", Pattern::Address),
        ("PATTERN_NOT_ADDRESS", Pattern::NotAddress),
        ("PATTERN_RANDOM", Pattern::Random),
        ("PATTERN_NOT_RANDOM", Pattern::NotRandom),
    ] {
        rust.insert(name.to_owned(), f64::from(pattern as u32));
    }
    for (i, unit) in SDC_UNIT_NAMES.into_iter().enumerate() {
        rust.insert(format!("SDC_{}", unit.to_uppercase()), i as f64);
    }
    let single = |numbers: BTreeMap<String, f64>| -> BTreeMap<String, f32> {
        numbers.into_iter().map(|(name, value)| (name, value as f32)).collect()
    };
    assert_eq!(single(cpp), single(rust));
}
