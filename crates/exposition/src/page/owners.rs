//! Whose work is on a GPU or MIG instance, and what holds it back.

use maud::{Markup, html};

use model::catalog::{Cause, Gpu};
use model::owners::cause_text;
use model::snapshot::{OwnerView, Snapshot};

/// Most owners of one GPU that are named.
const MOST_OWNERS: usize = 4;
/// Longest name that is shown whole, in characters.
const LONGEST: usize = 40;

/// The owners with processes on a GPU now; nothing if there is none. Those of MIG instances are named there.
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

/// An owner, and what holds back its work.
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
