//! The table of settings that `settings!` generates, and the TOML that comes from it.

use ::config::Value;

use super::Config;

/// A section of the configuration file.
pub(super) struct Section {
    pub name: &'static str,
    pub doc: &'static str,
    pub keys: &'static [Key],
}

type Comparison = fn(&Config) -> bool;

/// One setting.
pub(super) struct Key {
    /// `section.key`.
    pub name: &'static str,
    pub doc: &'static str,
    /// What the key accepts, for messages.
    pub expected: fn() -> String,
    /// Stores the value; false for a value of the wrong type or out of range.
    pub set: fn(&mut Config, &Value) -> bool,
    /// The value in TOML.
    pub toml: fn(&Config) -> String,
    /// The setting that must not be greater, if any, and whether it is.
    pub floor: &'static [(&'static str, Comparison)],
    /// Whether a new value applies without a restart.
    pub is_live: bool,
    /// Takes the value of another configuration; gives whether it was another one.
    pub adopt: fn(&mut Config, &Config) -> bool,
}

/// Declares sections and their keys: the structs with their defaults, and [`SECTIONS`].
macro_rules! settings {
    ($($(#[doc = $about:literal])+ $section:ident: $Section:ident {
        $($(#[doc = $doc:literal])+ $(@$live:ident)? $key:ident: $type:ty = $default:expr $(, $rule:expr)? $(, >= $floor:ident)?;)+
    })+) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Section {
                $($(#[doc = $doc])+ pub $key: $type,)+
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($key: $default,)+ }
                }
            }
        )+

        /// The whole configuration.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Config {
            $($(#[doc = $about])+ pub $section: $Section,)+
        }

        pub(super) const SECTIONS: &[Section] = &[$(Section {
            name: stringify!($section),
            doc: concat!($($about, "\n"),+),
            keys: &[$(Key {
                name: concat!(stringify!($section), ".", stringify!($key)),
                doc: concat!($($doc, "\n"),+),
                expected: || <$type as Setting>::expected(&settings!(@rule $($rule)?)),
                set: |config, value| {
                    <$type as Setting>::read(value, &settings!(@rule $($rule)?))
                        .map(|value| config.$section.$key = value)
                        .is_some()
                },
                toml: |config| config.$section.$key.toml(),
                floor: &[$((
                    concat!(stringify!($section), ".", stringify!($floor)),
                    |config| config.$section.$key < config.$section.$floor,
                ))?],
                is_live: settings!(@is $($live)?),
                adopt: |into, from| {
                    let differs = into.$section.$key != from.$section.$key;
                    into.$section.$key = from.$section.$key.clone();
                    differs
                },
            },)+],
        },)+];
    };
    (@is) => { false };
    (@is live) => { true };
    (@rule) => { () };
    (@rule $rule:expr) => { $rule };
}
pub(super) use settings;
