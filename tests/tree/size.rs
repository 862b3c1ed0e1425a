//! The lid on the size of the product's code: a change that does not fit replaces something.

use std::sync::LazyLock;

use regex::Regex;

use super::report;
use super::sources::{files, is_test, production};

/// Lines of code, without tests, comments and blank lines. The aim is 54,000: a change that deletes code lowers this number.
const MAX_LINES: usize = 55_650;
/// Lines of code in `src`, which only parses, wires and serves.
const MAX_LINES_IN_SRC: usize = 8_000;
/// Functions of more than 60 lines. None may have more than [`MAX_FUNCTION`].
const MAX_LONG_FUNCTIONS: usize = 5;
const LONG_FUNCTION: usize = 60;
const MAX_FUNCTION: usize = 100;
/// Types that other crates may name; `pub(crate)` is the default.
const MAX_PUBLIC_TYPES: usize = 450;

/// The product's Rust files with their numbered lines, tests apart.
fn sources() -> Vec<(String, Vec<(usize, String)>)> {
    let paths = files("src").into_iter().chain(files("crates"));
    let paths = paths.filter(|path| path.ends_with(".rs") && !is_test(path));
    paths.map(|path| (path.clone(), production(&path))).collect()
}

/// The lines of code of the files whose path starts so.
fn lines_of_code(sources: &[(String, Vec<(usize, String)>)], start: &str) -> usize {
    let code = |line: &str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let files = sources.iter().filter(|(path, _)| path.starts_with(start));
    files.map(|(_, lines)| lines.iter().filter(|(_, line)| code(line)).count()).sum()
}

/// The functions of a file: where each is, and how many lines it has.
fn functions(path: &str, lines: &[(usize, String)]) -> Vec<(String, usize)> {
    static FUNCTION: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"^( *)(?:pub(?:\([a-z]+\))? )?(?:async |const |unsafe |extern "C" )*fn (\w+)"#).unwrap()
    });
    let mut found = Vec::new();
    for (at, (number, line)) in lines.iter().enumerate() {
        let Some(function) = FUNCTION.captures(line) else { continue };
        let end = format!("{}}}", &function[1]);
        if let Some(length) = lines[at..].iter().position(|(_, line)| *line == end) {
            found.push((format!("{path}:{number}: {}", &function[2]), length + 1));
        }
    }
    found
}

#[test]
fn the_code_fits_below_its_lid() {
    static PUBLIC: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^\s*pub (?:unsafe )?(?:struct|enum|trait|type|union) \w").unwrap());
    let sources = sources();
    let (lines, in_src) = (lines_of_code(&sources, ""), lines_of_code(&sources, "src/"));
    let mut long: Vec<(String, usize)> =
        sources.iter().flat_map(|(path, lines)| functions(path, lines)).collect();
    long.retain(|(_, length)| *length > LONG_FUNCTION);
    let public =
        sources.iter().flat_map(|(_, lines)| lines).filter(|(_, line)| PUBLIC.is_match(line)).count();
    println!(
        "{lines} lines of code, {in_src} of them in src, {} functions over {LONG_FUNCTION} lines, {public} public types",
        long.len()
    );
    let mut problems = Vec::new();
    for (is, most, what) in [
        (lines, MAX_LINES, "lines of code: delete or simplify before you add"),
        (in_src, MAX_LINES_IN_SRC, "lines of code in src: move the work to the crate of its subject"),
        (public, MAX_PUBLIC_TYPES, "public types: `pub(crate)` is enough for most"),
    ] {
        if is > most {
            problems.push(format!("{is} {what}; the lid is {most}"));
        }
    }
    if long.len() > MAX_LONG_FUNCTIONS {
        problems.push(format!(
            "{} functions over {LONG_FUNCTION} lines; the lid is {MAX_LONG_FUNCTIONS}:",
            long.len()
        ));
        problems.extend(long.iter().map(|(place, length)| format!("    {place}: {length} lines")));
    }
    let too_long = long.iter().filter(|(_, length)| *length > MAX_FUNCTION);
    problems.extend(
        too_long.map(|(place, length)| format!("{place}: {length} lines; the lid is {MAX_FUNCTION}")),
    );
    report(problems);
}
