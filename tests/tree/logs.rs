//! Log lines are for people: no field of one is printed as Rust's `Debug`.

use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::product;

/// The arguments of a macro call that starts at `code`, up to its closing parenthesis.
fn arguments(code: &str) -> &str {
    let mut depth = 1;
    for (at, char) in code.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &code[..at];
        }
    }
    code
}

#[test]
fn no_log_line_has_a_field_in_debug_form() {
    static LOG: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\b(?:trace|debug|info|warn|error)!\(").unwrap());
    static DEBUG: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?:^|,)\s*(?:\w+\s*=\s*)?\?\s*[\w&(]").unwrap());
    let mut problems = Vec::new();
    for source in product() {
        for call in LOG.find_iter(&source.code) {
            let arguments = arguments(&source.code[call.end()..]);
            if DEBUG.is_match(arguments) {
                problems.push(format!("{}: {}{arguments})", source.path, call.as_str()));
            }
        }
    }
    report(problems);
}
