//! Whose work is on a GPU and what holds it back, as lines of its card.

use super::html::{esc, put};
use model::catalog::{Cause, Gpu};
use model::owners::cause_text;
use model::snapshot::Snapshot;

/// Most owners of one GPU that are named.
const MOST: usize = 4;
/// Longest name that is shown whole, in characters.
const LONGEST: usize = 64;

/// Appends the owners with processes on a GPU now; nothing if there is none.
pub fn put(out: &mut String, snapshot: &Snapshot, gpu: &Gpu) {
    let here: Vec<_> =
        snapshot.owners.iter().filter(|view| view.gpu == *gpu && !view.processes.is_empty()).collect();
    if here.is_empty() {
        return;
    }
    put!(out, "<div><dt>Owner</dt><dd>");
    for (at, view) in here.iter().take(MOST).enumerate() {
        let separator = if at > 0 { "<br>" } else { "" };
        put!(
            out,
            "{separator}<span title=\"{}\">{}</span>",
            esc(&view.owner.id),
            esc(&short(&view.owner.id))
        );
        if let Some(instance) = view.gpu_instance {
            put!(out, " <small>on instance {instance}</small>");
        }
        if let Some(cause) = view.cause.filter(|cause| *cause != Cause::None) {
            put!(out, " <small>· {}</small>", esc(cause_text(cause)));
        }
    }
    if here.len() > MOST {
        put!(out, "<br><small>and {} more</small>", here.len() - MOST);
    }
    put!(out, "</dd></div>\n");
}

fn short(id: &str) -> String {
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
    use model::snapshot::OwnerView;

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
        };
        let mut text = String::new();
        put(&mut text, &snapshot, &gpu);
        assert_eq!(text, "");
        snapshot.owners = vec![
            view("<b>", vec![1], Some(Cause::HostCpuBound)),
            view("gone", vec![], None),
            view(&"é".repeat(200), vec![2], Some(Cause::None)),
        ];
        put(&mut text, &snapshot, &gpu);
        assert!(!text.contains("<b>") && text.contains(cause_text(Cause::HostCpuBound)), "{text}");
        assert!(!text.contains("gone") && text.contains(&format!(">{}…<", "é".repeat(LONGEST))), "{text}");
    }
}
