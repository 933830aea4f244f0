//! Where a service runs and writes, and what of the shell that it is made in it does not know.

use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;

use crate::failure::{ExitCode, Failure};
use crate::remote;
use crate::settings::NodeSettings;

/// Where a node of another user keeps what it loads, beside its own folder, and the variables that say so: in its own folder, unless
/// the one who asks has named a place. That user has another home, and the cache of the one who asks stays theirs.
fn caches_in(directory: &Path, mut named: Vec<(&'static str, String)>) -> (Vec<(&'static str, String)>, Vec<PathBuf>) {
    let is_named = |names: &[&str]| named.iter().any(|(name, _)| names.contains(name));
    let [all, hub] = remote::caches();
    if is_named(&["XDG_CACHE_HOME"]) {
        return (named, vec![all, hub]);
    }
    let others = is_named(&["HF_HOME", "HF_HUB_CACHE"]).then_some(hub).into_iter().collect();
    named.push(("XDG_CACHE_HOME", directory.join("cache").display().to_string()));
    (named, others)
}

/// Whether a node loads something, or may.
pub(super) fn is_remote(settings: &NodeSettings, manifest: &RunManifest) -> bool {
    settings.data.accept_remote || remote::is_wanted(settings, manifest)
}

/// Those of these variables that say how something is loaded, but for where its cache is: systemd does not know what is set in a
/// shell, and keys are no part of a unit, which everybody can read.
pub(super) fn of_loading(set: impl Iterator<Item = String>) -> Vec<String> {
    let is_of_loading = |name: &String| {
        let others = ["HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "HUGGING_FACE_HUB_TOKEN"];
        name.starts_with("AWS_") || name.starts_with("HF_") || others.contains(&name.to_ascii_uppercase().as_str())
    };
    let mut names: Vec<String> =
        set.filter(is_of_loading).filter(|name| !remote::CACHE_VARIABLES.contains(&name.as_str())).collect();
    names.sort();
    names
}

/// Where a daemon runs and writes.
pub(super) struct Folders {
    /// Where relative places of its node file begin, as they do for a command that is typed there.
    pub(super) here: PathBuf,
    pub(super) writable: Vec<PathBuf>,
    /// Variables that say where they are, with their values: systemd does not know what is set in a shell.
    pub(super) variables: Vec<(&'static str, String)>,
}

impl Folders {
    /// Of a node with these settings, which may run as another user than the one that asks.
    pub(super) fn of(
        (directory, here): (&Path, PathBuf),
        (settings, manifest): (&NodeSettings, &RunManifest),
        is_for_another: bool,
    ) -> Folders {
        let mut writable = vec![directory.to_owned()];
        let others = [&settings.tensorboard.directory, &settings.data.cache];
        let given = others.into_iter().filter(|folder| !folder.as_os_str().is_empty());
        writable.extend(given.map(|folder| here.join(folder)));
        if !is_remote(settings, manifest) {
            return Folders { here, writable, variables: Vec::new() };
        }
        let set = |name| Some((name, std::env::var(name).ok().filter(|value| !value.is_empty())?));
        let named = remote::CACHE_VARIABLES.into_iter().filter_map(set).collect();
        let (variables, caches) =
            if is_for_another { caches_in(directory, named) } else { (named, remote::caches().into()) };
        writable.extend(caches);
        Folders { here, writable, variables }
    }

    /// Makes those that are missing: systemd refuses to make a folder writable that is not there.
    pub(super) fn make(&self) -> Result<(), Failure> {
        self.writable.iter().try_for_each(|folder| {
            std::fs::create_dir_all(folder).map_err(|error| {
                Failure::new(ExitCode::Files, format!("cannot make {}: {error}", folder.display()))
                    .hint("choose another folder with --data-dir, or in the node file")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_write_where_its_settings_say_and_where_remote_data_is_kept() {
        let own = Path::new("/srv/node");
        let mut settings = NodeSettings::default();
        let folders = |settings: &NodeSettings| {
            Folders::of((own, "/home/me".into()), (settings, &RunManifest::default()), false).writable
        };
        assert_eq!(folders(&settings), [own]);
        settings.tensorboard.directory = "/srv/board".into();
        settings.data.cache = "prepared".into();
        assert_eq!(folders(&settings), ["/srv/node", "/srv/board", "/home/me/prepared"].map(PathBuf::from));
        settings.data.files = vec!["hf://datasets/owner/name/*.txt".into()];
        assert_eq!(folders(&settings)[3..], remote::caches());
    }

    /// The home of the one who asks is another than the one that systemd gives the service.
    #[test]
    fn a_service_of_another_user_loads_into_its_own_folder_unless_a_place_is_named() {
        let own = Path::new("/srv/node");
        let named = |name: &'static str| vec![(name, "/srv/cache".to_owned())];
        let [all, hub] = remote::caches();
        let in_own = ("XDG_CACHE_HOME", "/srv/node/cache".to_owned());
        assert_eq!(caches_in(own, Vec::new()), (vec![in_own.clone()], Vec::new()));
        assert_eq!(caches_in(own, named("XDG_CACHE_HOME")), (named("XDG_CACHE_HOME"), vec![all, hub.clone()]));
        for name in ["HF_HOME", "HF_HUB_CACHE"] {
            assert_eq!(caches_in(own, named(name)), ([named(name), vec![in_own.clone()]].concat(), vec![hub.clone()]));
        }
        let mut settings = NodeSettings::default();
        settings.data.files = vec!["s3://bucket/texts".into()];
        let of = |settings: &NodeSettings| Folders::of((own, "/srv".into()), (settings, &RunManifest::default()), true);
        assert!(of(&settings).variables.iter().any(|(name, _)| *name == "XDG_CACHE_HOME"));
        assert_eq!(of(&NodeSettings::default()).variables, []);
    }

    #[test]
    fn what_a_shell_says_of_loading_is_named_and_nothing_else() {
        let set = ["PATH", "HF_TOKEN", "XDG_CACHE_HOME", "HF_HOME", "https_proxy", "AWS_ENDPOINT_URL", "HOME"];
        assert_eq!(of_loading(set.map(str::to_owned).into_iter()), ["AWS_ENDPOINT_URL", "HF_TOKEN", "https_proxy"]);
    }
}
