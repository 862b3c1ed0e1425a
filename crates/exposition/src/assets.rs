//! Alert rules and Grafana dashboards, embedded unchanged from the repository so that rules and metrics always have the
//! same version. `build.rs` collects the files. [`rules`] renders the rule files with the operator's values, and
//! [`prometheusrule`] renders them as Kubernetes objects.

pub mod prometheusrule;
pub mod rules;

/// An embedded file with its path.
#[derive(Debug, PartialEq, Eq)]
pub struct Asset {
    /// HTTP path, which is also the path below the root of the repository: `/alerts/hardware.rules.yml`.
    pub path: &'static str,
    pub text: &'static str,
    /// The text in gzip, if it was compressed at build time.
    pub gzip: Option<&'static [u8]>,
}

macro_rules! page_file {
    ($path:literal) => {
        Asset {
            path: $path,
            text: include_str!(concat!(env!("OUT_DIR"), "/", $path)),
            gzip: Some(include_bytes!(concat!(env!("OUT_DIR"), "/", $path, ".gz"))),
        }
    };
}

/// Style sheet and script of the status page. Their paths are names below `/page/`.
pub static PAGE_FILES: [Asset; 2] = [page_file!("style.css"), page_file!("script.js")];

/// All rules and dashboards, sorted by path.
pub static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

impl Asset {
    /// Returns the file at this path.
    pub fn at(path: &str) -> Option<&'static Asset> {
        let at = ASSETS.binary_search_by(|asset| asset.path.cmp(path)).ok()?;
        ASSETS.get(at)
    }

    /// Returns the files below a folder.
    pub fn below(folder: &str) -> impl Iterator<Item = &'static Asset> {
        ASSETS.iter().filter(move |asset| asset.path.starts_with(folder))
    }

    /// Returns the value of the `Content-Type` header.
    pub fn content_type(&self) -> &'static str {
        match self.path.rsplit('.').next() {
            Some("json") => "application/json",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            _ => "application/yaml; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::PATHS;

    #[test]
    fn each_is_found_by_its_path_and_by_no_other() {
        assert!(!ASSETS.is_empty());
        for asset in ASSETS {
            assert_eq!(Asset::at(asset.path), Some(asset));
            assert!(
                PATHS.iter().any(|(path, _)| *path != "/" && asset.path.starts_with(path)),
                "{}",
                asset.path
            );
            assert!(asset.path.ends_with(".yml") || asset.path.ends_with(".json"));
        }
        for none in ["", "/", "/alerts", "/alerts/", "/alerts/../Cargo.toml", "/alerts//owners.rules.yml"] {
            assert_eq!(Asset::at(none), None, "{none}");
        }
    }
}
