//! Alert rules, what belongs to them, and Grafana boards, embedded byte by byte as they are in the repository: the
//! program that brings the metrics brings what is made of them. `build.rs` finds the files.
//!
//! [`prometheusrule`] makes Kubernetes objects of the rules, [`command`] writes files out.

pub mod prometheusrule;

/// One embedded file.
#[derive(Debug, PartialEq, Eq)]
pub struct Asset {
    /// Where it is served and, below the repository's root, kept: `/alerts/hardware.rules.yml`.
    pub path: &'static str,
    /// What is in it.
    pub text: &'static str,
}

/// All of them, by path.
pub static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Folders that are served, each with what is in it.
pub const FOLDERS: [(&str, &str); 2] = [
    ("/alerts/", "alert and recording rules, and what belongs to them: the list of files"),
    ("/dashboards/", "Grafana boards: the list of files"),
];

impl Asset {
    /// The one at this path.
    pub fn at(path: &str) -> Option<&'static Asset> {
        let at = ASSETS.binary_search_by(|asset| asset.path.cmp(path)).ok()?;
        ASSETS.get(at)
    }

    /// Those of a folder.
    pub fn below(folder: &str) -> impl Iterator<Item = &'static Asset> {
        ASSETS.iter().filter(move |asset| asset.path.starts_with(folder))
    }

    /// What kind of document it is.
    pub fn content_type(&self) -> &'static str {
        if self.path.ends_with(".json") { "application/json" } else { "application/yaml; charset=utf-8" }
    }

    /// The header `ETag` that belongs to it: another one for another text (FNV-1a).
    pub fn etag(&self) -> String {
        let hash = self.text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("\"{hash:016x}\"")
    }

    /// Whether a client that sent this header `If-None-Match` has this text already.
    pub fn is_known_by(&self, if_none_match: &str) -> bool {
        let own = self.etag();
        let mut tags = if_none_match.split(',').map(str::trim);
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_path_and_by_no_other() {
        assert!(!ASSETS.is_empty());
        for asset in ASSETS {
            assert_eq!(Asset::at(asset.path), Some(asset));
            assert!(FOLDERS.iter().any(|(folder, _)| asset.path.starts_with(folder)), "{}", asset.path);
            assert!(asset.path.ends_with(".yml") || asset.path.ends_with(".json"));
        }
        for none in ["", "/", "/alerts", "/alerts/", "/alerts/../Cargo.toml", "/alerts//owners.rules.yml"] {
            assert_eq!(Asset::at(none), None, "{none}");
        }
    }

    #[test]
    fn a_tag_is_known_however_it_is_listed() {
        let asset = Asset { path: "/alerts/a.yml", text: "a" };
        // The published value of FNV-1a, 64 bits, for "a".
        let tag = "\"af63dc4c8601ec8c\"";
        assert_eq!(asset.etag(), tag);
        assert_ne!(Asset { text: "b", ..asset }.etag(), tag);
        for known in [tag, &format!("W/{tag}"), "*", &format!("\"1\", {tag}"), &format!("\"1\",W/{tag} ")] {
            assert!(asset.is_known_by(known), "{known}");
        }
        for unknown in ["", tag.trim_matches('"'), "\"1\"", &format!("\"1{}", &tag[1..])] {
            assert!(!asset.is_known_by(unknown), "{unknown}");
        }
    }
}
