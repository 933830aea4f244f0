//! Following one daemon on a thread of its own: its picture first, then what comes, again and again.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::News;
use crate::observe::record::Body;
use crate::observe::{Picture, Record};

/// How long a daemon is asked to wait for a record, in seconds.
const WAIT_SECONDS: u64 = 20;

/// An answer takes longer than that only where something is wrong.
const TIMEOUT: Duration = Duration::from_secs(WAIT_SECONDS + 10);

/// How long until the next try where a daemon does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// The largest answer that is read, in bytes: a picture of five days has a tenth of that.
const ANSWER_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Follows the daemon at an address until nobody wants to know any more.
pub(super) fn start(index: usize, address: String, sender: SyncSender<(usize, News)>) {
    let follow = move || {
        let config =
            ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).proxy(None);
        let follower = Follower { address, agent: config.build().new_agent() };
        let mut after = None;
        loop {
            let (news, pause) = match follower.ask(&mut after) {
                Ok(Some(news)) => (news, Duration::ZERO),
                Ok(None) => continue,
                Err(reason) => {
                    after = None;
                    (News::Silent(reason), RETRY)
                }
            };
            if sender.send((index, news)).is_err() {
                return;
            }
            std::thread::sleep(pause);
        }
    };
    std::thread::spawn(follow);
}

struct Follower {
    address: String,
    agent: ureq::Agent,
}

impl Follower {
    /// What is new after a record, or the whole picture where none is known.
    fn ask(&self, after: &mut Option<u64>) -> Result<Option<News>, String> {
        let Some(seq) = *after else {
            let picture: Picture = serde_json::from_str(&self.get("picture")?)
                .map_err(|_| "what answers there is no murmur of this version".to_owned())?;
            *after = Some(picture.nodes.values().map(|node| node.seq).max().unwrap_or(0));
            return Ok(Some(News::Picture(Box::new(picture))));
        };
        let text = self.get(&format!("records?after={seq}&wait={WAIT_SECONDS}"))?;
        let records: Vec<Record> = text.lines().filter_map(Record::parse).collect();
        let Some(last) = records.last() else { return Ok(None) };
        let is_new_process = last.seq < seq || records.iter().any(|record| matches!(record.body, Body::Run(_)));
        if is_new_process || records.iter().any(|record| matches!(record.body, Body::Missed(_))) {
            // The picture knows what was missed.
            *after = None;
            return Ok(None);
        }
        *after = Some(last.seq);
        Ok(Some(News::Records(records)))
    }

    fn get(&self, page: &str) -> Result<String, String> {
        let answer = self.agent.get(format!("http://{}/api/v1/{page}", self.address)).call();
        let mut answer = answer.map_err(|error| error.to_string())?;
        if answer.status() == 404 {
            return Err("it is of a version that cannot be watched".to_owned());
        }
        if !answer.status().is_success() {
            return Err(format!("it says {}", answer.status()));
        }
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        body.map_err(|error| error.to_string())
    }
}
