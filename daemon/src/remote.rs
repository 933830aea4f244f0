//! Data and models from where people keep them: a file by HTTPS, objects of an S3 store, repositories of the Hugging Face
//! hub. Before anything is read, a remote place becomes a local path: what it holds is loaded into a cache and found there
//! the next time, also without a network.
//!
//! Whose word a place is decides what it may do ([`Reach`]): an owner's is asked for with the owner's keys, a run's only with
//! the owner's consent, without keys, and at public addresses.

mod address;
mod allowance;
mod cache;
mod download;
mod http;
mod hub;
mod loading;
mod names;
mod progress;
mod s3;
mod trouble;
mod web;

use std::path::{Path, PathBuf};
use std::time::Duration;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;
use murmur_training::Corpus;

use crate::console::note;
use crate::failure::{ExitCode, Failure};
use crate::named;
use crate::settings::NodeSettings;
use crate::setup::corpus::corpus_failure;
use address::{Address, HubKind};
pub(crate) use address::{hub_model, split_login, without_keys};
pub(crate) use allowance::Allowance;
pub(crate) use cache::{CACHE_VARIABLES, caches};
use http::{Answer, Client, Reach};
use progress::Progress;
use trouble::Trouble;

/// How often an interface is asked that is busy, and for how long is waited in between; doubled each time.
const ASKED_MAX: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Pages of one list, at most: as many as hold a million files a thousand a page, and a server may send pages with none.
const PAGES_MAX: usize = 2000;

/// What a place is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Data,
    Base,
    Tokenizer,
}

/// Loads what is remote.
struct Remote {
    client: Client,
    allowance: Allowance,
}

/// Whether something of the node's own, or of the run that it needs, is remote.
pub(crate) fn is_wanted(settings: &NodeSettings, manifest: &RunManifest) -> bool {
    let NodeSettings { data, model, .. } = settings;
    let own = data.files.iter().chain([&data.tokenizer, &model.base]);
    own.into_iter().any(|path| parsed(path).is_some())
        || !manifest.data.remote.is_empty()
        || !manifest.base.remote.is_empty()
}

/// Has the node's remote places on this machine, and those of its run where the node has none of its own and its owner agrees:
/// the settings then name local paths. Returns the bytes that were loaded.
///
/// # Errors
/// When something does not come, or the owner has not agreed.
pub(crate) fn bring(
    settings: &mut NodeSettings,
    manifest: &RunManifest,
    is_founding: bool,
    allowance: Allowance,
) -> Result<u64, Failure> {
    if !is_wanted(settings, manifest) {
        return Ok(0);
    }
    let remote = Remote { client: Client::new()?, allowance };
    let needs_base = is_founding || manifest.lora.is_on();
    let needs_data = is_founding || !manifest.data.share;
    if needs_base {
        let named = Some(&manifest.base.remote).filter(|named| !named.is_empty() && settings.model.base().is_none());
        if let Some(named) = named {
            check_consent(settings, "begins from", named)?;
            settings.model.base = remote.bring_text(named, Purpose::Base, Reach::Public)?;
        }
        remote.bring_path(&mut settings.model.base, Purpose::Base)?;
    } else if parsed(&settings.model.base).is_some() {
        settings.model.base = PathBuf::new(); // all weights come from a member
    }
    if needs_data && settings.data.files.is_empty() && !manifest.data.remote.is_empty() {
        check_consent(settings, "reads its data from", &manifest.data.remote.join(", "))?;
        let bring = |named: &String| remote.bring_text(named, Purpose::Data, Reach::Public);
        settings.data.files = manifest.data.remote.iter().map(bring).collect::<Result<_, _>>()?;
    }
    settings.data.files.iter_mut().try_for_each(|path| remote.bring_path(path, Purpose::Data))?;
    remote.bring_path(&mut settings.data.tokenizer, Purpose::Tokenizer)?;
    remote.allowance.keep();
    Ok(remote.allowance.loaded())
}

/// The same of paths that a command without a node was given; nothing limits it.
///
/// # Errors
/// When something does not come.
pub(crate) fn bring_paths<'a>(
    data: impl IntoIterator<Item = &'a mut PathBuf>,
    base: Option<&mut PathBuf>,
    tokenizer: Option<&mut PathBuf>,
) -> Result<(), Failure> {
    let data = data.into_iter().map(|path| (path, Purpose::Data));
    let rest = [(base, Purpose::Base), (tokenizer, Purpose::Tokenizer)];
    let all = data.chain(rest.into_iter().filter_map(|(path, purpose)| Some((path?, purpose))));
    let mut wanted = all.filter(|(path, _)| parsed(path).is_some()).peekable();
    if wanted.peek().is_none() {
        return Ok(());
    }
    let remote = Remote { client: Client::new()?, allowance: Allowance::unlimited() };
    wanted.try_for_each(|(path, purpose)| remote.bring_path(path, purpose))
}

/// Fills the digest of a founder's data into its manifest, where the run names remote places: all members then train on the
/// same bytes, whatever a place holds later.
///
/// # Errors
/// When the data cannot be read.
pub(crate) fn describe(mut manifest: RunManifest, settings: &NodeSettings) -> Result<RunManifest, Failure> {
    let data = &manifest.data;
    let is_open = !data.remote.is_empty() && data.digest.is_empty() && !data.share;
    if is_open && data.source != DataSource::Grammar {
        let digest = Corpus::digest_of(data.source, &settings.data.files);
        manifest.data.digest = digest.map_err(|error| corpus_failure(&error))?;
    }
    Ok(manifest)
}

/// What a path names elsewhere, where it does; `None` for one of this machine.
fn parsed(path: &Path) -> Option<Result<Address, address::NoPlace>> {
    Address::parse(path.to_str()?)
}

fn check_consent(settings: &NodeSettings, does: &str, named: &str) -> Result<(), Failure> {
    if settings.data.accept_remote {
        note(&format!("remote      this run {does} {named}"));
        return Ok(());
    }
    let message = format!("this run {does} {named}, and this node has not agreed to load what a run names");
    Err(Failure::new(ExitCode::Settings, message)
        .hint("--accept-remote loads it, without your keys; or give your own copy with --data FILE… or --base FOLDER"))
}

impl Remote {
    /// Replaces a path that names a remote place of the owner's.
    fn bring_path(&self, path: &mut PathBuf, purpose: Purpose) -> Result<(), Failure> {
        if let Some(text) = path.to_str().filter(|text| Address::parse(text).is_some()) {
            *path = self.bring_text(text, purpose, Reach::Anywhere)?;
        }
        Ok(())
    }

    fn bring_text(&self, text: &str, purpose: Purpose, reach: Reach) -> Result<PathBuf, Failure> {
        let address = match Address::parse(text) {
            Some(parsed) => parsed.map_err(Trouble::from)?,
            None => return Ok(text.into()),
        };
        check_fit(&address, purpose)?;
        loop {
            let brought = match &address {
                Address::Web(web) => web::bring(self, web, reach),
                Address::Bucket(bucket) => s3::bring(self, bucket, reach),
                Address::Hub(hub) => hub::bring(self, hub, purpose, reach),
            };
            match brought {
                Ok(path) => {
                    let typed = Some(text).filter(|text| reach == Reach::Anywhere && without_keys(text) == *text);
                    named::keep(&path, &address.of_files(), typed);
                    return Ok(path);
                }
                Err(Trouble::Resting { .. }) => self.allowance.wait(),
                Err(trouble) => {
                    self.allowance.keep();
                    return Err(trouble.into());
                }
            }
        }
    }

    /// Whether somebody may be asked now.
    fn may_ask(&self, place: &str) -> Result<(), Trouble> {
        self.allowance.reason().map_or(Ok(()), |reason| Err(Trouble::Resting { place: place.to_owned(), reason }))
    }

    /// Asks an interface, and again where it is busy; people are told where that takes a while.
    fn patiently(&self, place: &str, ask: impl Fn() -> Result<Answer, Trouble>) -> Result<Answer, Trouble> {
        self.shown(&Progress::new(1, 0), place, || self.asked(place, ask))
    }

    fn asked(&self, place: &str, ask: impl Fn() -> Result<Answer, Trouble>) -> Result<Answer, Trouble> {
        let mut wait = FIRST_WAIT;
        for _ in 1..ASKED_MAX {
            self.may_ask(place)?;
            match ask() {
                Err(Trouble::Server { is_passing: true, words, .. }) => tracing::info!("{place}: {words}; asked again"),
                answer => return answer,
            }
            std::thread::sleep(wait);
            wait *= 2;
        }
        ask()
    }

    /// Does what brings a progress further while it is shown.
    fn shown<T>(&self, progress: &Progress, place: &str, work: impl FnOnce() -> T) -> T {
        /// Ends the showing whatever becomes of the work.
        struct Ends<'a>(&'a Progress, std::thread::Thread);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.end();
                self.1.unpark();
            }
        }
        std::thread::scope(|scope| {
            let shows = scope.spawn(|| progress.show(place));
            let _ends = Ends(progress, shows.thread().clone());
            work()
        })
    }

    fn say_waiting(&self, place: &str) {
        note(&format!("loading     {place}: it is being loaded on this machine already; waiting for it"));
    }
}

/// What is no place for a purpose.
fn check_fit(address: &Address, purpose: Purpose) -> Result<(), Trouble> {
    let unfit = |reason, hint: &str| Err(Trouble::Unfit { place: address.to_string(), reason, hint: hint.to_owned() });
    match (purpose, address) {
        (Purpose::Base, Address::Web(_)) => unfit(
            "is one file, and a base is a folder of several",
            "give hf://OWNER/NAME, s3://BUCKET/FOLDER or a folder",
        ),
        (Purpose::Base, Address::Hub(hub)) if hub.kind == HubKind::Dataset => {
            unfit("is a dataset, and a base is a model", "a model is written hf://OWNER/NAME")
        }
        (Purpose::Base, Address::Hub(hub)) if !hub.path.is_empty() => {
            unfit("is a part of a repository, and a base is all of it", "leave the path behind hf://OWNER/NAME out")
        }
        (Purpose::Data, Address::Hub(hub)) if hub.kind == HubKind::Model && hub.path.is_empty() => {
            unfit("is a model, not data", "a dataset is written hf://datasets/OWNER/NAME; a model goes after --base")
        }
        (Purpose::Tokenizer, Address::Hub(hub)) if hub.path.is_empty() => {
            unfit("is a repository, not a file", "write hf://OWNER/NAME/tokenizer.json")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_refused_where_it_does_not_fit_with_the_way_it_would() {
        let fits = |text: &str, purpose| {
            let address = Address::parse(text).expect("remote").expect("a place");
            check_fit(&address, purpose).map_err(|trouble| Failure::from(trouble).remedy().to_owned())
        };
        assert_eq!(fits("hf://a/b", Purpose::Base), Ok(()));
        assert_eq!(fits("s3://bucket/model", Purpose::Base), Ok(()));
        assert_eq!(fits("hf://datasets/a/b", Purpose::Data), Ok(()));
        for (text, purpose, remedy) in [
            ("https://a.example/model.safetensors", Purpose::Base, "hf://OWNER/NAME"),
            ("hf://datasets/a/b", Purpose::Base, "hf://OWNER/NAME"),
            ("hf://a/b/config.json", Purpose::Base, "leave the path"),
            ("hf://a/b", Purpose::Data, "hf://datasets/"),
            ("hf://a/b", Purpose::Tokenizer, "tokenizer.json"),
        ] {
            let found = fits(text, purpose).expect_err(text);
            assert!(found.contains(remedy), "{text}: {found}");
        }
    }

    #[test]
    fn what_a_run_names_is_loaded_only_with_consent() {
        let mut manifest = RunManifest::default();
        manifest.data.source = DataSource::Files;
        manifest.data.remote = vec!["https://127.0.0.1:9/a.txt".to_owned()];
        let mut settings = NodeSettings::default();
        let mut bring_now = || bring(&mut settings, &manifest, false, Allowance::unlimited());
        let failure = bring_now().expect_err("no consent");
        assert_eq!(failure.code(), ExitCode::Settings);
        assert!(failure.to_string().contains("reads its data from https://127.0.0.1:9/a.txt"), "{failure}");
        assert!(failure.remedy().contains("--accept-remote"), "{}", failure.remedy());
        settings.data.accept_remote = true;
        let failure = bring(&mut settings, &manifest, false, Allowance::unlimited()).expect_err("a private address");
        assert!(failure.to_string().contains("an address of a private network"), "{failure}");
    }
}
