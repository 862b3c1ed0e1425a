//! `kernels/abi.h` and `abi.rs` say the same.

use std::collections::BTreeMap;

const CPP: &str = include_str!("../../../../kernels/abi.h");
const RUST: &str = include_str!("../abi.rs");

/// What stands between the two, behind the start.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end)
}

/// Without what follows `//` in each line.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Structures with their fields in order: name, type, elements (empty: no array).
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
    let text = without_comments(RUST);
    let mut rest = text.as_str();
    let mut found = Structures::new();
    while let Some((name, after)) = between(rest, "pub struct ", " {") {
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

/// Both lay out fields by C's rules, so the same fields in the same order are at the same offsets.
#[test]
fn structures_are_the_same_in_both() {
    let (cpp, mut rust) = (cpp_structures(), rust_structures());
    // A plain array in C++.
    assert!(rust.remove("TensorShape").is_some());
    assert!(cpp.len() >= 13 && cpp.values().all(|fields| !fields.is_empty()), "{cpp:?}");
    assert_eq!(cpp, rust);
}

/// Numbers by name, as in C++: of enumerations, and of constants.
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

/// A number, a name, or `n * (a + b)` or `n * a` of these.
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

#[test]
fn numbers_are_the_same_in_both() {
    use super::*;
    let cpp = cpp_numbers();
    macro_rules! rust {
        ($($name:ident),+ $(,)?) => {
            BTreeMap::from([$((stringify!($name).to_owned(), f64::from($name as f32))),+])
        };
    }
    let mut rust = rust![
        BAD_LANES,
        BAD_WORDS,
        SM_RATE_THREADS,
        SM_RATE_CHAINS,
        SM_RATE_CHAIN_FMA,
        SM_RATE_A,
        SM_RATE_B,
        TENSOR_SHARED_BYTES,
        SDC_THREADS,
        SDC_UNITS,
        SDC_ROUNDS,
        SDC_MAX_ROUNDS,
        SDC_SHARED_WORDS,
        SDC_COUNTERS,
        SDC_SHARED_BYTES,
        READ_THREADS,
        READ_SHARED_BYTES,
        WALK_THREADS,
        OVERLAP_THREADS,
        OVERLAP_A,
        OVERLAP_B,
        TRANSFORM_THREADS,
    ];
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
