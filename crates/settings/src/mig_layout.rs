//! The declared MIG layout, from a file in the format of nvidia-mig-parted (`version: v1`).
//!
//! As in nvidia-mig-parted, the last entry of a layout that matches a GPU applies. An entry matches a GPU if `devices`
//! contains its index and `device-filter` contains its PCI ids.

use std::collections::BTreeMap;

use model::plain_file::read_text;
use serde::Deserialize;

use super::load::{ConfigErrors, Loaded, MAX_BYTES, nearest, quoted};

/// Number of MIG devices by profile, such as `1g.18gb` or `1c.3g.71gb`.
type Profiles = BTreeMap<String, u32>;

/// Maximum number of MIG devices of one profile in a layout. No GPU has as many slices.
const MAX_DEVICES: u32 = 64;

/// Declared MIG layout of this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeclaredLayout {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    /// PCI ids of the matching GPUs; empty for any GPU.
    filter: Vec<PciIds>,
    /// NVML indexes of the matching GPUs; `None` for all GPUs.
    devices: Option<Vec<u32>>,
    /// Declared MIG devices; `None` if MIG mode must be disabled.
    profiles: Option<Profiles>,
}

/// PCI ids of a GPU, with the device id in the upper 16 bits and the vendor id in the lower 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PciIds {
    device: u32,
    /// PCI ids of the subsystem, if the driver reports them.
    subsystem: Option<u32>,
}

/// Declared layout of one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted<'a> {
    /// No entry matches the GPU.
    Nothing,
    /// The layout depends on PCI ids, which the driver does not report.
    Unknown,
    /// MIG mode must be disabled.
    Off,
    /// MIG mode must be enabled, with exactly these MIG devices.
    Devices(&'a Profiles),
}

impl DeclaredLayout {
    /// Returns the declared layout of the GPU with this NVML index. `device` and `subsystem` are its PCI ids as parsed by
    /// [`pci_id`].
    pub fn wanted(&self, index: u32, device: Option<u32>, subsystem: Option<u32>) -> Wanted<'_> {
        self.wanted_for(index, device.map(|device| PciIds { device, subsystem }))
    }

    fn wanted_for(&self, index: u32, ids: Option<PciIds>) -> Wanted<'_> {
        let entries = self.entries.iter().rev();
        for entry in entries.filter(|e| e.devices.as_ref().is_none_or(|list| list.contains(&index))) {
            let matches = match ids {
                _ if entry.filter.is_empty() => true,
                None => return Wanted::Unknown,
                Some(ids) => entry.filter.iter().any(|filter| filter.matches(ids)),
            };
            if matches {
                return entry.profiles.as_ref().map_or(Wanted::Off, Wanted::Devices);
            }
        }
        Wanted::Nothing
    }

    /// Returns the layout with this name from the text of a file, or the only layout if the name is empty. An error consists
    /// of the key of the wrong setting and the message.
    fn parse(text: &str, name: &str) -> Result<DeclaredLayout, (&'static str, String)> {
        let file_error = |why: String| {
            let next = "correct the file; its format is that of nvidia-mig-parted";
            ("mig.layout_file", format!("{why}; {next}"))
        };
        let mut layouts = layouts(text).map_err(file_error)?;
        let names: Vec<String> = layouts.keys().cloned().collect();
        match (name, names.as_slice()) {
            (_, []) => Err(file_error("mig-configs is empty".into())),
            ("", [only]) => Ok(layouts.remove(only).unwrap_or_default()),
            ("", _) => Err((
                "mig.layout",
                format!("the file has several layouts; choose one of {}", names.join(", ")),
            )),
            (name, _) => layouts.remove(name).ok_or_else(|| {
                let next = match nearest(name, names.iter().map(String::as_str)) {
                    Some(nearest) => format!("did you mean {}?", quoted(nearest)),
                    None => format!("choose one of {}", names.join(", ")),
                };
                ("mig.layout", format!("the file has no layout {}; {next}", quoted(name)))
            }),
        }
    }
}

/// Parses all layouts in the text of a file.
fn layouts(text: &str) -> Result<BTreeMap<String, DeclaredLayout>, String> {
    let file: File = yaml_serde::from_str(text).map_err(|e| e.to_string())?;
    if file.version != "v1" {
        return Err(format!("version must be \"v1\", not {}", quoted(&file.version)));
    }
    let layout = |(name, entries): (String, Vec<RawEntry>)| {
        if entries.is_empty() {
            return Err(format!("{name} has no entries"));
        }
        let entries = entries.into_iter().map(RawEntry::check).collect::<Result<_, _>>();
        let entries = entries.map_err(|e| format!("{name}: {e}"))?;
        Ok((name, DeclaredLayout { entries }))
    };
    file.mig_configs.into_iter().map(layout).collect()
}

impl Loaded {
    /// Reads the declared layout. Returns `None` if the configuration names no file.
    pub fn declared_layout(&self) -> Result<Option<DeclaredLayout>, ConfigErrors> {
        let mig = &self.config.mig;
        let error = |key: &str, message: String| ConfigErrors(vec![self.error(key, message)]);
        let Some(path) = &mig.layout_file else {
            return match mig.layout.as_str() {
                "" => Ok(None),
                name => Err(error(
                    "mig.layout",
                    format!("{} needs a file; set mig.layout_file too", quoted(name)),
                )),
            };
        };
        let file = path.display();
        let text = read_text(path, MAX_BYTES).map_err(|e| {
            let next = "correct the path, or set \"\" for no declared layout";
            error("mig.layout_file", format!("failed to read {file}: {e}; {next}"))
        })?;
        let layout = DeclaredLayout::parse(&text, &mig.layout);
        layout.map(Some).map_err(|(key, why)| error(key, format!("{file}: {why}")))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    version: String,
    mig_configs: BTreeMap<String, Vec<RawEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawEntry {
    device_filter: Option<OneOrMany>,
    devices: AllOrList,
    mig_enabled: bool,
    mig_devices: Option<Profiles>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "device-filter must be a PCI id in quotes, such as \"0x233510DE\", or a list of PCI ids"
)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "devices must be \"all\", or a list of GPU indexes such as [0, 1]")]
enum AllOrList {
    Word(String),
    List(Vec<u32>),
}

impl RawEntry {
    fn check(self) -> Result<Entry, String> {
        let filter = match self.device_filter {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
        };
        let filter = filter.iter().filter(|text| !text.is_empty()).map(|text| PciIds::parse(text));
        let devices = match self.devices {
            AllOrList::Word(word) if word == "all" => None,
            AllOrList::Word(word) => {
                return Err(format!("devices must be \"all\" or a list, not {}", quoted(&word)));
            }
            AllOrList::List(list) => Some(list),
        };
        let profiles = match (self.mig_enabled, self.mig_devices) {
            (true, Some(mut profiles)) => {
                if let Some(wrong) = profiles.keys().find(|profile| !is_profile(profile)) {
                    return Err(format!("{} is not a MIG profile such as \"3g.71gb\"", quoted(wrong)));
                }
                if let Some((profile, count)) = profiles.iter().find(|(_, count)| **count > MAX_DEVICES) {
                    return Err(format!("{count} of {profile}: no GPU has more than {MAX_DEVICES}"));
                }
                profiles.retain(|_, count| *count > 0);
                Some(profiles)
            }
            (true, None) => return Err("mig-enabled is true, but mig-devices is missing".into()),
            (false, None) => None,
            (false, Some(profiles)) if profiles.is_empty() => None,
            (false, Some(_)) => return Err("mig-enabled is false, but mig-devices is set".into()),
        };
        Ok(Entry { filter: filter.collect::<Result<_, _>>()?, devices, profiles })
    }
}

impl PciIds {
    /// Parses `0x233510DE`, or `0x233510DE:0x18BE10DE` with the ids of the subsystem.
    fn parse(text: &str) -> Result<PciIds, String> {
        let ids: Option<Vec<u32>> = text.splitn(2, ':').map(pci_id).collect();
        let ids = ids.map(|ids| PciIds { device: ids[0], subsystem: ids.get(1).copied() });
        ids.ok_or_else(|| format!("{} is not a PCI id such as \"0x233510DE\"", quoted(text)))
    }

    fn matches(self, ids: PciIds) -> bool {
        self.device == ids.device && self.subsystem.is_none_or(|own| ids.subsystem == Some(own))
    }
}

/// Parses a PCI id such as `0x233510DE`.
pub fn pci_id(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    u32::from_str_radix(digits, 16).ok()
}

/// Returns true if a text has the format of a MIG profile, such as `1g.18gb`, `1c.3g.71gb`, `1g.18gb+me` or `1g.18gb-me`.
fn is_profile(text: &str) -> bool {
    let number = |text: &str, unit| {
        let digits = text.strip_suffix(unit);
        digits.is_some_and(|d: &str| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    let split = text.split_once(['+', '-']);
    let (shape, engines) = split.map_or((text, None), |(shape, engines)| (shape, Some(engines)));
    let is_suffix =
        |e: &str| !e.is_empty() && e.bytes().all(|b| b.is_ascii_alphanumeric() || b".,".contains(&b));
    let parts: Vec<&str> = shape.split('.').collect();
    let matches = match parts.as_slice() {
        [slices, memory] => number(slices, "g") && number(memory, "gb"),
        [compute, slices, memory] => number(compute, "c") && number(slices, "g") && number(memory, "gb"),
        _ => false,
    };
    matches && engines.is_none_or(is_suffix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = r#"
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  all-balanced:
    # H200 141GB
    - device-filter: ["0x233510DE", "0x233610de"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.18gb": 2
        "2g.35gb": 1
        "3g.71gb": 1
    - device-filter: "0x20B210DE:0x146310DE"
      devices: [0, 2]
      mig-enabled: true
      mig-devices: { 1g.10gb: 7, 1c.3g.40gb: 0 }
  custom:
    - devices: all
      mig-enabled: true
      mig-devices: { "7g.141gb": 1 }
    - devices: [1]
      mig-enabled: false
"#;

    const H200: Option<PciIds> = Some(PciIds { device: 0x2335_10de, subsystem: Some(0x18be_10de) });
    const A100: Option<PciIds> = Some(PciIds { device: 0x20b2_10de, subsystem: Some(0x1463_10de) });

    fn layout(name: &str) -> DeclaredLayout {
        DeclaredLayout::parse(FILE, name).unwrap()
    }

    fn wrong(text: &str, name: &str) -> String {
        DeclaredLayout::parse(text, name).unwrap_err().1
    }

    fn profiles(list: &[(&str, u32)]) -> Profiles {
        list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_layout_says_what_it_wants_of_each_gpu() {
        assert_eq!(layout("all-disabled").wanted_for(3, None), Wanted::Off);
        assert_eq!(layout("all-enabled").wanted_for(3, None), Wanted::Devices(&Profiles::new()));
        let balanced = layout("all-balanced");
        let h200 = profiles(&[("1g.18gb", 2), ("2g.35gb", 1), ("3g.71gb", 1)]);
        assert_eq!(balanced.wanted_for(7, H200), Wanted::Devices(&h200));
        assert_eq!(
            balanced.wanted_for(2, A100),
            Wanted::Devices(&profiles(&[("1g.10gb", 7)])),
            "0 of one is none"
        );
        assert_eq!(balanced.wanted_for(1, A100), Wanted::Nothing, "not in the list");
        let other = PciIds { device: 0x20b2_10de, subsystem: Some(0x147f_10de) };
        assert_eq!(balanced.wanted_for(2, Some(other)), Wanted::Nothing, "another subsystem");
        assert_eq!(balanced.wanted_for(2, None), Wanted::Unknown);
    }

    #[test]
    fn the_last_entry_that_covers_a_gpu_decides() {
        let custom = layout("custom");
        assert_eq!(custom.wanted_for(0, None), Wanted::Devices(&profiles(&[("7g.141gb", 1)])));
        assert_eq!(custom.wanted_for(1, None), Wanted::Off);
    }

    #[test]
    fn the_only_layout_needs_no_name_and_one_of_several_does() {
        let one = "version: v1\nmig-configs: {current: [{devices: all, mig-enabled: false}]}";
        assert_eq!(DeclaredLayout::parse(one, "").unwrap().wanted_for(0, None), Wanted::Off);
        assert_eq!(
            wrong(FILE, ""),
            "the file has several layouts; choose one of all-balanced, all-disabled, all-enabled, custom"
        );
        assert_eq!(
            wrong(FILE, "all-balance"),
            "the file has no layout \"all-balance\"; did you mean \"all-balanced\"?"
        );
        assert_eq!(wrong(one, "x"), "the file has no layout \"x\"; choose one of current");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let entry = |entry: &str| format!("version: v1\nmig-configs: {{a: [{{{entry}}}]}}");
        for (text, said) in [
            (
                entry("devices: some, mig-enabled: false"),
                "a: devices must be \"all\" or a list, not \"some\"",
            ),
            (entry("devices: 1, mig-enabled: false"), "devices must be \"all\", or a list of GPU indexes"),
            (entry("devices: all, mig-enabled: true"), "a: mig-enabled is true, but mig-devices is missing"),
            (
                entry("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
                "a: mig-enabled is false, but mig-devices is set",
            ),
            (
                entry("devices: all, mig-enabled: true, mig-devices: {1g5gb: 1}"),
                "a: \"1g5gb\" is not a MIG profile such as \"3g.71gb\"",
            ),
            (entry("devices: all, mig-enabled: true, mig-devices: {1g.5gb: 99}"), "99 of 1g.5gb"),
            (entry("devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}"), "-1"),
            (
                entry("device-filter: 0x233510DE, devices: all, mig-enabled: false"),
                "device-filter must be a PCI id in quotes",
            ),
            (
                entry("device-filter: \"2335\", devices: all, mig-enabled: false"),
                "a: \"2335\" is not a PCI id such as \"0x233510DE\"",
            ),
            (entry("device: all, mig-enabled: false"), "unknown field `device`"),
            ("version: v2\nmig-configs: {a: []}".into(), "version must be \"v1\", not \"v2\""),
            ("version: v1\nmig-configs: {a: []}".into(), "a has no entries"),
            ("version: v1\nmig-configs: {}".into(), "mig-configs is empty"),
            ("version: v1".into(), "missing field `mig-configs`"),
            ("version: [".into(), "line 1"),
        ] {
            let what = wrong(&text, "");
            assert!(what.contains(said), "{text:?}: {what:?} does not say {said:?}");
        }
    }

    #[test]
    fn profiles_have_a_form() {
        for right in
            ["1g.5gb", "7g.141gb", "1c.3g.71gb", "1g.10gb+me", "1g.12gb-me", "1g.24gb+me.all", "4g.96gb+gfx"]
        {
            assert!(is_profile(right), "{right}");
        }
        for wrong in ["", "1g", "g.5gb", "1g.gb", "1x.3g.71gb", "1g.5gb+", "1g.5gb+m e", "1g.5gb.1g", "+me"] {
            assert!(!is_profile(wrong), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "\\PC*", name in "\\PC{0,5}") {
            let _ = DeclaredLayout::parse(&text, &name);
            let _ = DeclaredLayout::parse(&format!("version: v1\nmig-configs: {text}"), &name);
            let _ = is_profile(&text);
        }
    }
}
