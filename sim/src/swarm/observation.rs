//! Looking at a swarm from outside: records for checks, samples for plots.

use std::borrow::Cow;
use std::time::Duration;

use super::Swarm;
use crate::host::Host;
use crate::record::{Record, Sample, Spread, Traffic};

impl Swarm {
    /// What checks look at, as of now.
    pub fn record(&mut self) -> Record {
        let now = self.queue.now();
        self.catch_up_everywhere();
        for host in self.hosts.iter_mut().flatten() {
            host.measure_node(&mut self.history.peaks);
        }
        let honest = self.hosts.iter().flatten().filter(|host| host.liar.is_none());
        let known = honest.flat_map(|host| host.node.status().known);
        let ended = known.filter_map(|known| self.ended_at.get(&known.peer));
        let longest_remembered = ended.map(|at| now.saturating_since(*at)).max().unwrap_or_default();
        let exchanged_until = self.reports_end.unwrap_or(now);
        let first_end = self.ended_at.values().min();
        let whole = self.whole();
        let whole = whole.as_deref();
        let living =
            self.hosts.iter().flatten().map(|host| host.record((now, exchanged_until), true, &self.objective, whole));
        Record {
            lives: self.dead.iter().cloned().chain(living).collect(),
            fragments: self.fragments.count().into(),
            exchanges: self.ledger.totals(),
            longest_remembered,
            longest_dead: first_end.map_or(Duration::ZERO, |at| now.saturating_since(*at)),
            ..self.history.clone()
        }
    }

    /// What has been noted so far, without lives and what is added up of them.
    pub(crate) fn history(&self) -> &Record {
        &self.history
    }

    /// The model of an honest host that holds all of it.
    fn whole(&self) -> Option<Cow<'_, [f32]>> {
        let is_whole = |host: &Host| {
            let held = host.trainer.held().iter().map(ExactSizeIterator::len).sum::<usize>();
            host.liar.is_none() && host.trainer.has_model && held == self.fragments.parameters()
        };
        self.hosts.iter().flatten().find(|host| is_whole(host)).map(|host| host.trainer.values())
    }

    /// The largest Euclidean distance of an honest model from their mean, as of the steps that were caught up with.
    pub(super) fn disagreement(&self) -> f64 {
        let honest = self.hosts.iter().flatten().filter(|host| host.liar.is_none() && host.trainer.has_model);
        let values: Vec<_> = honest.map(|host| (host.trainer.values(), host.trainer.held())).collect();
        Spread::of(&values.iter().map(|(values, held)| (&values[..], *held)).collect::<Vec<_>>()).worst
    }

    /// What each host has sent since the beginning, over all its lives.
    pub fn traffic(&self) -> &[Traffic] {
        &self.history.traffic
    }

    /// A few numbers of the whole swarm, as of now: cheap enough for hundreds of points of a plot.
    pub fn sample(&mut self) -> Sample {
        self.catch_up_everywhere();
        let running = || self.hosts.iter().flatten().filter(|host| !host.has_stopped);
        let honest = || running().filter(|host| host.liar.is_none() && host.trainer.has_model);
        let values: Vec<_> = honest().map(|host| (host.trainer.values(), host.trainer.held())).collect();
        let models: Vec<_> = values.iter().map(|(values, held)| (&values[..], *held)).collect();
        let spread = Spread::of(&models);
        let whole = self.whole();
        let losses: Vec<f64> = honest().map(|host| host.loss(&self.objective, whole.as_deref())).collect();
        let mean = |sum: f64| if models.is_empty() { 0.0 } else { sum / models.len() as f64 };
        let mut sample = Sample {
            at: self.now(),
            running: running().count(),
            with_model: models.len(),
            loss: mean(losses.iter().sum()),
            worst_loss: losses
                .iter()
                .copied()
                .reduce(|worst, loss| if loss > worst || loss.is_nan() { loss } else { worst })
                .unwrap_or_default(),
            disagreement: spread.rms,
            worst_disagreement: spread.worst,
            progress: mean(honest().map(|host| host.trainer.progress).sum()),
            steps: self.dead.iter().map(|life| life.steps).sum::<u64>()
                + self.hosts.iter().flatten().map(|host| host.trainer.steps - host.first_steps).sum::<u64>(),
            connected: running().map(|host| host.connected()).sum(),
            isolated: running().filter(|host| host.links.is_empty()).count(),
            exchanges_completed: self.exchanges.0,
            failed_sides: self.exchanges.1,
            ..Sample::default()
        };
        self.history.traffic.iter().for_each(|traffic| sample.traffic += *traffic);
        sample
    }
}
