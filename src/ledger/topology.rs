//! Where each GPU sits: the topology joined with the GPUs by PCI address.

use std::sync::Arc;

use super::Ledger;
use super::publish::Builder;
use crate::clock::Mono;
use crate::snapshot::TopologyView;
use crate::topology::News;

/// What was told last.
#[derive(Debug, Default)]
pub struct Topology {
    news: Option<Arc<News>>,
}

impl Topology {
    /// Takes in what was found.
    pub fn take(&mut self, news: News) {
        self.news = Some(Arc::new(news));
    }
}

impl Topology {
    /// What was told last.
    pub fn newest(&self) -> Option<&News> {
        self.news.as_deref()
    }
}

impl Ledger {
    /// Everything about the topology.
    pub(super) fn put_topology(&mut self, _b: &mut Builder<'_>, _now: Mono) -> TopologyView {
        TopologyView { news: self.topology.news.clone() }
    }
}
