//! The owners of the work on a GPU or MIG instance, and their bottlenecks.

use maud::{Markup, html};

use model::catalog::{Cause, Gpu};
use model::owners::cause_text;
use model::snapshot::{OwnerView, Snapshot};

/// Maximum number of owners shown per GPU.
const MOST_OWNERS: usize = 4;
/// Maximum length of a name that is not shortened, in characters.
const LONGEST: usize = 40;

/// Renders the owners that have processes on a GPU, or nothing if there are none. Owners of MIG instances are shown with
/// the instance.
pub fn of_gpu(snapshot: &Snapshot, gpu: &Gpu) -> Markup {
    let is_here =
        |view: &&OwnerView| view.gpu == *gpu && view.gpu_instance.is_none() && !view.processes.is_empty();
    let here: Vec<&OwnerView> = snapshot.owners.iter().filter(is_here).collect();
    html! {
        @if !here.is_empty() {
            div {
                dt { "Owners" }
                dd {
                    ul {
                        @for view in here.iter().take(MOST_OWNERS) { li { (owner(view)) } }
                        @if here.len() > MOST_OWNERS { li { "and " (here.len() - MOST_OWNERS) " more" } }
                    }
                }
            }
        }
    }
}

/// Renders an owner and its bottleneck.
pub fn owner(view: &OwnerView) -> Markup {
    html! {
        span title=(view.owner.id) { (cut(&view.owner.id)) }
        @if let Some(cause) = view.cause.filter(|cause| *cause != Cause::None) { " " small { (cause_text(cause)) } }
    }
}

fn cut(id: &str) -> String {
    match id.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &id[..at]),
        None => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use model::owners::Owner;

    #[test]
    fn owners_with_processes_are_named_and_no_name_is_markup() {
        let gpu = Gpu { gpu: 0, uuid: "a".into() };
        let mut snapshot = Snapshot::default();
        let view = |id: &str, processes, cause| OwnerView {
            owner: Arc::new(Owner { id: id.into(), ..Owner::unknown() }),
            gpu: gpu.clone(),
            gpu_instance: None,
            processes,
            cause,
            worked: None,
            waits_since: None,
        };
        assert_eq!(of_gpu(&snapshot, &gpu).0, "");
        snapshot.owners = vec![
            view("<b>", vec![1], Some(Cause::HostCpuBound)),
            view("gone", vec![], None),
            view(&"é".repeat(200), vec![2], Some(Cause::None)),
        ];
        let text = of_gpu(&snapshot, &gpu).0;
        assert!(!text.contains("<b>") && text.contains(cause_text(Cause::HostCpuBound)), "{text}");
        assert!(!text.contains("gone") && text.contains(&format!(">{}…<", "é".repeat(LONGEST))), "{text}");
    }
}
