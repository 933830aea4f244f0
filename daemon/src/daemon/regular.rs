//! What a daemon does again and again beside training: reports, fresh tickets, the list of peers on disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use murmur_network::{Admission, Network, Reachability};
use murmur_protocol::{Phase, RunEnd, RunId, Secret, Status};
use murmur_training::team::SwarmTicket;
use tokio::sync::watch;

use crate::console::note;
use crate::daemon::invitation::Invitation;
use crate::drivers::{DataReport, TrainingView};
use crate::engine::Picture;
use crate::limits::rest::RestView;
use crate::limits::stay::StayFacts;
use crate::observe::doing::is_seeking;
use crate::observe::outlook::{Length, Outlook};
use crate::observe::record::EndFacts;
use crate::observe::report::{NodeReport, Outside};
use crate::store::{Announcement, DataDirectory, SavingView, keep_finish};
use crate::team::report::TeamSource;

/// How often reports are made.
const REPORT_PERIOD: Duration = Duration::from_millis(250);

/// How often the known peers are written: a killed node finds them again.
const PEERS_PERIOD: Duration = Duration::from_secs(30);

/// How often it is looked whether `daemon.json` is there: commands find the daemon by it.
const ANNOUNCEMENT_PERIOD: Duration = Duration::from_secs(5);

/// How often an order to finish the run is written again that could not be written.
pub(super) const FINISH_PERIOD: Duration = Duration::from_secs(30);

/// How often the addresses in fresh tickets are looked up.
const INVITATION_PERIOD: Duration = Duration::from_secs(1);

/// Puts reports together from what the parts show of themselves.
#[derive(Clone)]
pub(super) struct Reporter {
    /// What is told of its stay at the end, where it has limits or a price.
    pub(super) stay: Option<StayFacts>,
    pub(super) run: String,
    pub(super) run_name: String,
    pub(super) device: String,
    pub(super) data_directory: String,
    pub(super) prediction: &'static str,
    pub(super) parameters: usize,
    /// The node's own; empty: none.
    pub(super) name: String,
    /// Its own limit of steps.
    pub(super) own_steps: Option<u64>,
    /// Bytes of a model on its way to a joiner.
    pub(super) state_bytes: u64,
    /// What comes of checkpoints.
    pub(super) saving: SavingView,
    /// A lock, because a report is also made at the end; held for microseconds.
    pub(super) outlook: Arc<Mutex<Outlook>>,
    pub(super) pictures: watch::Receiver<Picture>,
    pub(super) training: watch::Receiver<TrainingView>,
    pub(super) data: Option<watch::Receiver<DataReport>>,
    pub(super) rest: watch::Receiver<RestView>,
    pub(super) reachability: watch::Receiver<Reachability>,
    /// For how long pings take.
    pub(super) network: Network,
    pub(super) clock: Instant,
    /// Where other machines hold a part of the model.
    pub(super) team: Option<TeamSource>,
}

impl Reporter {
    /// What its owner calls the node.
    pub(super) fn own_name(&self) -> Option<String> {
        (!self.name.is_empty()).then(|| self.name.clone())
    }

    /// What has come of training, where this is known of the run's end.
    pub(super) fn outcome(&self, end: &RunEnd) -> EndFacts {
        let training = self.training.borrow();
        let own_part = self.own_steps.is_some_and(|own| training.steps >= own);
        // Where all have as many steps of their own as the run has, the last of them ends it.
        let is_over = end.at().is_some_and(|end| training.progress.max(training.steps as f64) >= end);
        let own_part = own_part && !is_over;
        EndFacts { steps: training.steps, complete: own_part || is_over, own_part, failure: training.failure.clone() }
    }

    pub(super) fn report(&self, picture: &Picture) -> NodeReport {
        let seconds = self.clock.elapsed().as_secs_f64();
        let (done, copies) = {
            let training = self.training.borrow();
            ((training.steps, training.progress), training.copies)
        };
        let end = &picture.status.end;
        // With a limit of its own a node goes on to it, whatever the others' pace, unless the founder ends the run.
        let is_bound = self.own_steps.is_none() || end.order.is_some();
        let swarm = end.at().filter(|_| is_bound).map(|end| end.round() as u64);
        let length = Length { own: self.own_steps, swarm };
        let paced = is_paced(&picture.status).then_some(seconds);
        let mut outlook = self.outlook.lock().unwrap_or_else(PoisonError::into_inner);
        NodeReport::new(
            &picture.status,
            &Outside {
                run: &self.run,
                run_name: &self.run_name,
                device: &self.device,
                data_directory: &self.data_directory,
                prediction: self.prediction,
                parameters: self.parameters,
                name: &self.name,
                outlook: outlook.look(length, paced, done, copies),
                state_bytes: self.state_bytes,
                saving: self.saving.look(),
                training: &self.training.borrow(),
                rest: &self.rest.borrow(),
                reachability: &self.reachability.borrow(),
                peers: &picture.peers,
                round_trips: &self.network.round_trips(),
                bytes_sent: picture.traffic.sent,
                bytes_received: picture.traffic.received,
                seconds,
                data: self.data.as_ref().map(|data| data.borrow().clone()).as_ref(),
                team: self.team.as_ref().and_then(TeamSource::report),
            },
        )
    }
}

/// Whether what grows is what this node and its swarm train, and no model that is copied; who leaves comes no further.
fn is_paced(status: &Status) -> bool {
    let is_here = !matches!(status.phase, Phase::Joining | Phase::Leaving | Phase::Left);
    is_here && status.copying.is_none() && !is_seeking(status)
}

pub(super) async fn report_regularly(reporter: Reporter, reports: watch::Sender<NodeReport>) {
    let mut ticks = tokio::time::interval(REPORT_PERIOD);
    loop {
        ticks.tick().await;
        let report = reporter.report(&reporter.pictures.borrow());
        reports.send_replace(report);
    }
}

pub(super) async fn remember_peers_regularly(directory: Arc<DataDirectory>, mut pictures: watch::Receiver<Picture>) {
    // The first at once: a member that is killed before its first checkpoint must find back.
    if pictures.wait_for(|picture| !picture.status.known.is_empty()).await.is_err() {
        return;
    }
    loop {
        let (directory, known) = (directory.clone(), pictures.borrow().status.known.clone());
        if !known.is_empty() {
            let _ = tokio::task::spawn_blocking(move || directory.remember_peers(&known)).await;
        }
        tokio::time::sleep(PEERS_PERIOD).await;
    }
}

pub(super) async fn announce_regularly(announcement: Weak<Announcement>) {
    loop {
        tokio::time::sleep(ANNOUNCEMENT_PERIOD).await;
        let announcement = announcement.clone();
        let _ =
            tokio::task::spawn_blocking(move || announcement.upgrade().map(|announcement| announcement.write())).await;
    }
}

/// How others join through this node as it is reached now.
pub(super) fn invitation(run: RunId, network: &Network, secret_file: Option<&Path>) -> Invitation {
    let (public, listen) = (network.public_addresses(), network.listen_addresses());
    let invitation = Invitation::new(run, network.peer_id(), &public, &listen);
    Invitation { secret_file: secret_file.map(Path::to_owned), ..invitation }
}

pub(super) async fn invite_regularly(
    run: RunId,
    network: Network,
    secret_file: Option<PathBuf>,
    pictures: watch::Receiver<Picture>,
    invitations: watch::Sender<Invitation>,
) {
    let mut ticks = tokio::time::interval(INVITATION_PERIOD);
    loop {
        ticks.tick().await;
        let invited = invitation(run, &network, secret_file.as_deref());
        let status = pictures.borrow().status.clone();
        invitations.send_replace(invited.with_others(&status.connected, &status.known));
    }
}

/// Tells helpers, which may exchange their layers by themselves, how they come to the swarm: by this node's newest
/// ticket. Not at all while it rests, nor while it shuts peers out: helpers do not know whom.
pub(super) async fn invite_helpers(
    helpers: SwarmTicket,
    secret: Option<Secret>,
    (mut invitations, mut rest): (watch::Receiver<Invitation>, watch::Receiver<RestView>),
    mut admission: watch::Receiver<Admission>,
) {
    loop {
        let is_resting = rest.borrow_and_update().reason.is_some();
        let lets_all_in = *admission.borrow_and_update() == Admission::default();
        let invited = !is_resting && lets_all_in;
        let ticket = invitations.borrow_and_update().ticket(secret.clone()).filter(|_| invited);
        helpers.set(ticket.map(|ticket| ticket.to_string()));
        let changed = tokio::select! {
            changed = invitations.changed() => changed,
            changed = rest.changed() => changed,
            changed = admission.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Writes the founder's order to finish the run as soon as the core knows a new one, and where it could not be written again after a
/// while.
pub(super) async fn keep_the_finish(
    directory: Arc<DataDirectory>,
    mut pictures: watch::Receiver<Picture>,
    again_after: Duration,
) {
    let mut kept = pictures.borrow().status.end.order.clone();
    loop {
        let order = match pictures.wait_for(|picture| picture.status.end.order != kept).await {
            Ok(picture) => picture.status.end.order.clone(),
            Err(_) => return,
        };
        let (root, written) = (directory.root().to_owned(), order.clone());
        let write = move || written.map_or(Ok(()), |order| keep_finish(&root, &order));
        match tokio::task::spawn_blocking(write).await.map_err(std::io::Error::other).flatten() {
            Ok(()) => kept = order,
            Err(error) => {
                note(&format!("warning: cannot write the order to finish the run: {error}; it is tried again"));
                note("hint: a restart before that forgets it, until a member tells it again");
                tokio::time::sleep(again_after).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use murmur_network::Traffic;
    use murmur_protocol::{Ending, FinishOrder, PeerId, RunManifest, Status};

    use super::*;
    use crate::store::known_end;

    #[test]
    fn who_copies_or_leaves_has_no_pace() {
        let status = |phase| Status { phase, ..Status::of(PeerId::from_public_key([1; 32])) };
        assert!([Phase::Training, Phase::Settling, Phase::Completed].map(status).iter().all(is_paced));
        assert!(![Phase::Joining, Phase::Leaving, Phase::Left].map(status).iter().any(is_paced));
    }

    #[tokio::test]
    async fn an_order_to_finish_that_cannot_be_written_is_written_later() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = Arc::new(DataDirectory::open(folder.path()).expect("free"));
        // Nothing can be written over it.
        let path = folder.path().join("finish.json");
        std::fs::create_dir(&path).expect("made");
        let mut status = Status::of(PeerId::from_public_key([1; 32]));
        let picture = |status| Picture { status, traffic: Traffic::default(), peers: Default::default() };
        let (pictures, view) = watch::channel(picture(status.clone()));
        let keeping = tokio::spawn(keep_the_finish(directory, view, Duration::from_millis(20)));
        // It knows of no order when it begins.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let ending = Ending { from: 1.0, until: 2.0 };
        status.end.order = Some(FinishOrder { serial: 1, ending, signature: [0; 64] });
        pictures.send_replace(picture(status));
        tokio::time::sleep(Duration::from_millis(100)).await;
        std::fs::remove_dir(&path).expect("empty still");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !path.exists() {
            assert!(Instant::now() < deadline, "the order was forgotten");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(known_end(folder.path(), &RunManifest::default()).is_ok());
        keeping.abort();
    }
}
