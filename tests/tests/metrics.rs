//! What a daemon tells Prometheus: read by a real one where it is installed.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use murmur_tests::TINY_RUN;
use serde_json::Value;

use crate::place::Place;

/// A started Prometheus has read a page, and answers queries, within this.
const PROMETHEUS_MAX: Duration = Duration::from_secs(60);

/// Ends with the value.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> Option<String> {
    ureq::get(&format!("http://{address}{path}")).call().ok()?.body_mut().read_to_string().ok()
}

#[test]
fn prometheus_reads_what_a_daemon_tells() {
    let place = Place::new(TINY_RUN);
    let arguments = ["start", place.run_file(), "--name", "an \"odd\\ name"];
    let daemon = place.spawn("node", &arguments);
    let address = daemon.status_address();
    daemon.wait_for("steps", |report| report.steps > 0);
    let page = get(&address, "/metrics").expect("it answers");
    assert!(page.contains("murmur_own_steps ") && page.ends_with("# EOF\n"), "{page}");

    let own = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
    let config =
        format!("scrape_configs: [{{job_name: m, scrape_interval: 1s, static_configs: [{{targets: ['{address}']}}]}}]");
    std::fs::write(place.at("prometheus.yml"), config).expect("a temporary directory can be written");
    let started = Command::new("prometheus")
        .current_dir(place.path())
        .args(["--config.file", "prometheus.yml", "--storage.tsdb.path", "data", "--web.listen-address", &own])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(process) = started else {
        println!("skipped: there is no `prometheus` here to read the page");
        return;
    };
    let _prometheus = Prometheus(process);
    let begin = Instant::now();
    let value = |query: &str| -> Option<(f64, Value)> {
        let answer: Value = serde_json::from_str(&get(&own, &format!("/api/v1/query?query={query}"))?).ok()?;
        let found = answer.pointer("/data/result/0")?;
        Some((found.pointer("/value/1")?.as_str()?.parse().ok()?, found["metric"].clone()))
    };
    let mut up = None;
    while up.is_none() {
        assert!(begin.elapsed() < PROMETHEUS_MAX, "it has not read the page");
        sleep(Duration::from_millis(200));
        up = value("up").filter(|(up, _)| *up > 0.0).and_then(|_| value("murmur_own_steps"));
    }
    assert!(up.is_some_and(|(steps, _)| steps > 0.0));
    let (_, node) = value("murmur_node_info").expect("it was read");
    assert_eq!(node["name"], "an \"odd\\ name", "{node}");
    assert_eq!(value("murmur_phase").expect("it was read").1["phase"], "training");
}
