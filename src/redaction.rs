//! Removes secrets from texts that leave the node.

use std::sync::LazyLock;

use regex_lite::Regex;

/// Pattern of keys whose values may be secret.
const KEY: &str = r"[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|authorization)[\w.-]*";
/// Pattern of a value in TOML, YAML, JSON or a log line, including the scheme of a header. An unclosed quote extends to
/// the end of the line, and so does an escaped quote, because its end depends on the text around it.
const VALUE: &str = concat!(
    r#"(?:"""(?s:.*?)(?:"""|\z)|'''(?s:.*?)(?:'''|\z)"#,
    r#"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?:"|'|\\+["'])[^\n]*"#,
    r"|\[[^\]]*(?:\]|\z)",
    r"|[|>][-+0-9]*[ \t]*(?:\n[ \t]+[^\n]*)+",
    r"|(?:(?:bearer|basic|negotiate)\s+)?[^\s,;}]+)",
);

/// Pattern of a parameter in an HTTP header.
const PARAMETER: &str = r#"\w+=(?:\\*"[^"\\\n]*\\*"|[^\s,"\\]+)"#;

/// Returns the text without secrets.
pub(crate) fn without_secrets(text: &str) -> String {
    static SECRETS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let rules = [
            // `password: x y`: a line of YAML or a header, up to its end.
            (format!(r#"(?im)^([ \t-]*{KEY}:[ \t]+)[^"'|>\[\s][^\n]*"#), "${1}\"[removed]\""),
            // `Digest username="x", response=y`, also within JSON.
            (format!(r"(?i)\b(digest)\s+{PARAMETER}(?:\s*,\s*{PARAMETER})*"), "${1} [removed]"),
            // `password = "x"`, `api-key: x`, `"token":"x"`, `secret => x`.
            (format!(r#"(?i)({KEY}\\*["']?\s*[:=]+>?\s*){VALUE}"#), "${1}\"[removed]\""),
            // `--password x`.
            (format!(r#"(?i)(--{KEY}["']?[ \t,]+){VALUE}"#), "${1}\"[removed]\""),
            (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}".to_owned(), "${1} [removed]"),
            // User and password in an address, up to the last @, because a password may contain one.
            (r#"://[^/\s"]+@"#.to_owned(), "://[removed]@"),
            (
                r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)"
                    .to_owned(),
                "[removed]",
            ),
            (r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{20,}".to_owned(), "[removed]"),
        ];
        rules.into_iter().filter_map(|(rule, with)| Some((Regex::new(&rule).ok()?, with))).collect()
    });
    // Most texts of a recording contain none of these.
    let lower = text.to_ascii_lowercase();
    let marks = ["pass", "secret", "token", "cred", "key", "auth", "bearer", "basic", "digest", "://", "$2"];
    let mut text = text.to_owned();
    if marks.iter().any(|mark| lower.contains(mark)) {
        for (rule, with) in SECRETS.iter() {
            text = rule.replace_all(&text, *with).into_owned();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_stays_in_a_text() {
        let text = "password = \"hunter2\"\nhttp.api-key = 'hunter2'\nAuthorization: Bearer hunter2hunter2\n\
            url = \"https://me:hunter2@proxy:3128/x\"\n{\"token\":\"hunter2\",\"n\":1}\nsecret=hunter2, next=1\n\
            -----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n\
            admin: $2y$10$hunter2hunter2hunter2hunter2hunter2\nlevel = \"info\"";
        let cleaned = without_secrets(text);
        assert!(!cleaned.contains("hunter2"), "{cleaned}");
        for kept in ["password = ", "proxy:3128/x", "\"n\":1", "next=1", "level = \"info\""] {
            assert!(cleaned.contains(kept), "{kept}: {cleaned}");
        }
    }

    #[test]
    fn a_value_ends_where_its_language_ends_it() {
        for (text, cleaned) in [
            (r#"{"token":"ab\"cd","n":1}"#, r#"{"token":"[removed]","n":1}"#),
            (r#"{"token":"ab\\","n":"1"}"#, r#"{"token":"[removed]","n":"1"}"#),
            ("token = \"\"\"a\n\"b\" c\"\"\"\nn = 1", "token = \"[removed]\"\nn = 1"),
            ("token = '''a\n'b' c'''\nn = 1", "token = \"[removed]\"\nn = 1"),
            ("token = \"\"\"a\nb", "token = \"[removed]\""),
            ("token = \"a b\nsecret = \"c\"\nn = 1", "token = \"[removed]\"\nsecret = \"[removed]\"\nn = 1"),
            ("password = 'it\\'s c'\nn = 1", "password = \"[removed]\"\nn = 1"),
            ("password: |\n  a b\n  c\nn: 1", "password: \"[removed]\"\nn: 1"),
            ("- password: it is c, d\n  n: 1", "- password: \"[removed]\"\n  n: 1"),
            ("Authorization: Digest a=\"b\", c=\"d\"\nHost: e", "Authorization: \"[removed]\"\nHost: e"),
            ("sent Digest username=\"a\", response=\"b\"\nn", "sent Digest [removed]\nn"),
            (r#"{"a":"Digest b=\"c\", d=1","n":1}"#, r#"{"a":"Digest [removed]","n":1}"#),
            (
                "sent Authorization: Digest username=\"a\", c=\"d\"\nn",
                "sent Authorization: \"[removed]\" [removed]\nn",
            ),
            (r#"sent {\"token\":\"a\\\"b\"}"#, r#"sent {\"token\":"[removed]""#),
            ("token := a b", "token := \"[removed]\" b"),
            (r#"{"tokens":["a","b"],"n":1}"#, r#"{"tokens":"[removed]","n":1}"#),
            ("tokens = [\n  \"a\",\n]\nn = 1", "tokens = \"[removed]\"\nn = 1"),
            ("-----BEGIN PRIVATE KEY-----\na\nb", "[removed]"),
        ] {
            assert_eq!(without_secrets(text), cleaned, "{text}");
        }
    }

    #[test]
    fn a_password_in_an_address_may_have_the_sign_that_ends_it() {
        for (text, cleaned) in [
            ("http://me:p@ss@host:1/x", "http://[removed]@host:1/x"),
            ("http://me:p'ss@host:1/x", "http://[removed]@host:1/x"),
            ("http://me:p@ss@host/x@y z@w", "http://[removed]@host/x@y z@w"),
            (r#"["http://host","a@b"]"#, r#"["http://host","a@b"]"#),
        ] {
            assert_eq!(without_secrets(text), cleaned, "{text}");
        }
    }

    #[test]
    fn a_flag_has_its_value_after_a_space() {
        for (text, cleaned) in [
            ("run --password hunter2 --verbose", "run --password \"[removed]\" --verbose"),
            ("run --api-key 'a b' x", "run --api-key \"[removed]\" x"),
            (r#"["--token","hunter2","x"]"#, r#"["--token","[removed]","x"]"#),
            ("run --password=hunter2 x", "run --password=\"[removed]\" x"),
            ("the file-token x", "the file-token x"),
        ] {
            assert_eq!(without_secrets(text), cleaned, "{text}");
        }
    }
}
