//! async-nats. Each step is done as it is, and again while the node that leads the stream is killed.
//!
//! How it talks to the harness: tests/acceptance/clients/programs/program.py.

use async_nats::jetstream::consumer::{self, pull, push, AckPolicy};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, kv, object_store, stream, AckKind, Context};
use async_nats::service::ServiceExt;
use async_nats::{Client, ConnectOptions};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{json, Value};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const WAIT_MAX: Duration = Duration::from_secs(60);
const RECONNECT_MAX: Duration = Duration::from_secs(120);
const BEFORE_KILL: usize = 50;
const AFTER_KILL: usize = 50;
/// What a request, or an attempt at one, may take.
const TIMEOUT: Duration = Duration::from_secs(2);
const ACK_WAIT: Duration = Duration::from_secs(10);
const OBJECT_BYTES: usize = 4 << 20;

#[derive(Clone)]
struct Given {
    urls: Vec<String>,
    prefix: String,
}

fn say(values: Value) {
    println!("{values}");
}

async fn ask(what: &'static str, queue: String) -> Value {
    say(json!({"ask": what, "queue": queue}));
    let read = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    };
    tokio::task::spawn_blocking(read).await.expect("an answer")
}

fn strings(value: &Value) -> Vec<String> {
    let texts = value.as_array().expect("a list").iter();
    texts
        .map(|each| each.as_str().expect("a text").to_string())
        .collect()
}

#[tokio::main]
async fn main() {
    let asked: Value =
        serde_json::from_str(&std::env::args().nth(1).expect("what to do")).expect("JSON");
    let prefix = asked["prefix"].as_str().expect("a prefix").to_string();
    let given = Given {
        urls: strings(&asked["urls"]),
        prefix,
    };
    for step in strings(&asked["steps"]) {
        let work = run(step.clone(), given.clone());
        let (ok, detail) = match tokio::spawn(work).await {
            Ok(Ok(detail)) => (true, detail),
            Ok(Err(error)) => (false, error.to_string()),
            Err(error) => (false, said(error)),
        };
        say(json!({"step": step, "ok": ok, "detail": detail}));
    }
    std::process::exit(0);
}

/// What an assertion said.
fn said(error: tokio::task::JoinError) -> String {
    let thrown = error.into_panic();
    let text = thrown.downcast_ref::<String>().cloned();
    text.or(thrown.downcast_ref::<&str>().map(|text| text.to_string()))
        .unwrap_or_default()
}

async fn run(step: String, given: Given) -> Outcome<String> {
    let (what, kill) = match step.strip_suffix("+kill") {
        Some(what) => (what, true),
        None => (step.as_str(), false),
    };
    if what == "connect" {
        return connect(&given).await;
    }
    let it = Scene::open(&given, what, kill).await?;
    let detail = match what {
        "publish" => publish(&it).await,
        "pull" => pull(&it).await,
        "push" => push(&it).await,
        "ordered" => ordered(&it).await,
        "kv" => key_value(&it).await,
        "objects" => objects(&it).await,
        "services" => services(&it).await,
        _ => return Err("no part of its program".into()),
    }?;
    jetstream::new(it.far.clone())
        .delete_stream(&it.stream)
        .await?;
    Ok(detail)
}

/// To the first that answers; then to any other when that one dies.
async fn connected(urls: &[String], wrong: Option<&str>) -> Outcome<Client> {
    let (user, password, _) = parts(&urls[0]);
    let hosts: Vec<String> = urls.iter().map(|url| parts(url).2).collect();
    let client = ConnectOptions::new()
        .user_and_password(user, wrong.map_or(password, str::to_string))
        .retain_servers_order()
        .reconnect_delay_callback(|_| Duration::from_millis(100))
        .connect(hosts)
        .await?;
    Ok(client)
}

fn parts(url: &str) -> (String, String, String) {
    let (_, rest) = url.split_once("://").expect("a URL");
    let (who, host) = rest.rsplit_once('@').unwrap_or((":", rest));
    let (user, password) = who.split_once(':').expect("a password");
    (user.to_string(), password.to_string(), host.to_string())
}

/// What was done, and the longest wait for it.
struct Load {
    count: usize,
    wait: Duration,
}

impl fmt::Display for Load {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(
            out,
            "{} acknowledged, the longest wait {:.2} s",
            self.count,
            self.wait.as_secs_f64()
        )
    }
}

/// A stream, a client at the node that leads it, and one at another node.
struct Scene {
    name: String,
    stream: String,
    near: Client,
    far: Client,
    kill: bool,
}

impl Scene {
    async fn open(given: &Given, what: &str, kill: bool) -> Outcome<Scene> {
        let name =
            format!("{}.{what}{}", given.prefix, if kill { "-kill" } else { "" }).replace('.', "-");
        let js = jetstream::new(connected(&given.urls, None).await?);
        let bucket = name.clone();
        let stream = match what {
            "kv" => {
                let config = kv::Config {
                    bucket,
                    history: 5,
                    num_replicas: 3,
                    ..Default::default()
                };
                js.create_key_value(config).await?;
                format!("KV_{name}")
            }
            "objects" => {
                let config = object_store::Config {
                    bucket,
                    num_replicas: 3,
                    ..Default::default()
                };
                js.create_object_store(config).await?;
                format!("OBJ_{name}")
            }
            _ => {
                let subjects = vec![name.clone()];
                js.create_stream(stream::Config {
                    name: bucket,
                    subjects,
                    num_replicas: 3,
                    ..Default::default()
                })
                .await?;
                name.clone()
            }
        };
        let urls = strings(&ask("leader", stream.clone()).await["urls"]);
        let mut others = urls.clone();
        others.rotate_left(1);
        let (near, far) = (
            connected(&urls, None).await?,
            connected(&others, None).await?,
        );
        Ok(Scene {
            name,
            stream,
            near,
            far,
            kill,
        })
    }

    fn near_js(&self) -> Context {
        let mut js = jetstream::new(self.near.clone());
        js.set_timeout(TIMEOUT);
        js
    }

    fn far_js(&self) -> Context {
        jetstream::new(self.far.clone())
    }

    /// An attempt for each number, again until it succeeds; the leader dies in the midst.
    async fn throughout<F, A>(&self, before: usize, after: usize, mut attempt: A) -> Outcome<Load>
    where
        F: Future<Output = Outcome<()>>,
        A: FnMut(usize) -> F,
    {
        let (began, mut last) = (Instant::now(), Instant::now());
        let dead = Arc::new(AtomicBool::new(!self.kill));
        let (mut load, mut left) = (
            Load {
                count: 0,
                wait: Duration::ZERO,
            },
            after,
        );
        while left > 0 {
            if let Err(error) = attempt(load.count).await {
                if !self.kill || began.elapsed() > RECONNECT_MAX {
                    return Err(error);
                }
                sleep(Duration::from_millis(20)).await;
                continue;
            }
            load.count += 1;
            load.wait = load.wait.max(last.elapsed());
            last = Instant::now();
            if dead.load(Ordering::SeqCst) {
                left -= 1;
            } else if load.count == before {
                let (dead, stream) = (dead.clone(), self.stream.clone());
                tokio::spawn(async move {
                    ask("kill", stream).await;
                    dead.store(true, Ordering::SeqCst);
                });
            }
        }
        Ok(load)
    }

    /// Numbers, each stored once however often it was tried.
    async fn publish(&self) -> Outcome<Load> {
        let js = self.near_js();
        let attempt = |number: usize| {
            let (js, subject, text) = (js.clone(), self.stream.clone(), number.to_string());
            async move {
                let message = PublishMessage::build()
                    .message_id(&text)
                    .payload(text.into());
                let ack = js.send_publish(subject, message).await?.await?;
                assert_eq!(ack.sequence, number as u64 + 1, "sequence");
                Ok(())
            }
        };
        self.throughout(BEFORE_KILL, AFTER_KILL, attempt).await
    }
}

async fn until(done: impl Fn() -> bool, what: &str) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < WAIT_MAX, "{what}: not in time");
        sleep(Duration::from_millis(20)).await;
    }
}

fn number(payload: &[u8]) -> usize {
    std::str::from_utf8(payload)
        .expect("a text")
        .parse()
        .expect("a number")
}

async fn connect(given: &Given) -> Outcome<String> {
    let client = connected(&given.urls[..1], None).await?;
    until(
        || client.server_info().connect_urls.len() == given.urls.len(),
        "all addresses",
    )
    .await;
    client.flush().await?;
    let error = connected(&given.urls[..1], Some("wrong"))
        .await
        .err()
        .expect("a wrong password is refused");
    assert!(error.to_string().contains("authorization"), "{error}");
    Ok(format!(
        "a node says {}; a wrong password: {error}",
        client.server_info().version
    ))
}

async fn publish(it: &Scene) -> Outcome<String> {
    let load = it.publish().await?;
    let js = it.far_js();
    let stream = js.get_stream(&it.stream).await?;
    for number in 0..load.count {
        let found = stream.get_raw_message(number as u64 + 1).await?;
        assert_eq!(found.payload, number.to_string(), "message");
    }
    let subject = it.stream.clone();
    let again = js
        .send_publish(subject.clone(), PublishMessage::build().message_id("7"))
        .await?
        .await?;
    assert_eq!(
        (again.sequence, again.duplicate),
        (8, true),
        "the same id again"
    );
    let late = PublishMessage::build().expected_last_sequence(7);
    let error = js
        .send_publish(subject, late)
        .await?
        .await
        .expect_err("a wrong sequence is refused");
    assert_eq!(
        error.kind(),
        jetstream::context::PublishErrorKind::WrongLastSequence
    );
    assert_eq!(
        stream.get_info().await?.state.messages,
        load.count as u64,
        "messages"
    );
    Ok(load.to_string())
}

/// What a consumer got and acknowledged for sure. Nothing of it may come again.
#[derive(Default)]
struct Settled {
    in_time: Mutex<HashMap<usize, bool>>,
    twice: Mutex<usize>,
}

impl Settled {
    async fn take(&self, message: jetstream::Message) {
        let (number, came) = (number(&message.payload), Instant::now());
        let before = self.in_time.lock().unwrap().get(&number).copied();
        if let Some(in_time) = before {
            assert!(
                !in_time,
                "{number} came again though it was acknowledged in time"
            );
            *self.twice.lock().unwrap() += 1;
        }
        while came.elapsed() < ACK_WAIT {
            if let Ok(Ok(())) = timeout(TIMEOUT, message.double_ack()).await {
                self.in_time
                    .lock()
                    .unwrap()
                    .insert(number, came.elapsed() < ACK_WAIT / 2);
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn count(&self) -> usize {
        self.in_time.lock().unwrap().len()
    }

    async fn finished(&self, it: &Scene, load: Load) -> Outcome<String> {
        until(|| self.count() >= load.count, "all that is acknowledged").await;
        let stream = it.far_js().get_stream(&it.stream).await?;
        let info = stream.consumer_info("reader").await?;
        let found = (
            info.ack_floor.stream_sequence,
            info.num_ack_pending,
            info.num_pending,
        );
        assert_eq!(
            found,
            (load.count as u64, 0, 0),
            "acknowledged up to, and what is open"
        );
        Ok(format!("{load}, {} twice", self.twice.lock().unwrap()))
    }
}

/// The work of one, with that of the other beside it, which never ends but by failing.
async fn beside<T>(
    work: impl Future<Output = Outcome<T>>,
    other: impl Future<Output = Outcome<()>>,
) -> Outcome<T> {
    tokio::select! {
        done = work => done,
        failed = other => Err(failed.err().unwrap_or("a consumer ended".into())),
    }
}

async fn pull(it: &Scene) -> Outcome<String> {
    let config = pull::Config {
        durable_name: Some("reader".into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        ..Default::default()
    };
    let consumer: consumer::PullConsumer = it
        .far_js()
        .create_consumer_on_stream(config, &it.stream)
        .await?;
    let settled = Settled::default();
    let take = async {
        loop {
            let fetched = async {
                let mut batch = consumer
                    .batch()
                    .max_messages(10)
                    .expires(TIMEOUT)
                    .messages()
                    .await?;
                while let Some(message) = batch.next().await {
                    let message = message?;
                    let about = message.info()?;
                    if about.stream_sequence == 4 && about.delivered == 1 {
                        message.ack_with(AckKind::Nak(None)).await?;
                    } else {
                        settled.take(message).await;
                    }
                }
                Outcome::Ok(())
            };
            if let Err(error) = fetched.await {
                if !it.kill {
                    return Err(error);
                }
            }
        }
    };
    let work = async { settled.finished(it, it.publish().await?).await };
    beside(work, take).await
}

async fn push(it: &Scene) -> Outcome<String> {
    let config = push::Config {
        durable_name: Some("reader".into()),
        deliver_subject: it.far.new_inbox(),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        flow_control: true,
        idle_heartbeat: Duration::from_secs(1),
        ..Default::default()
    };
    let consumer: consumer::PushConsumer = it
        .far_js()
        .create_consumer_on_stream(config, &it.stream)
        .await?;
    let mut messages = consumer.messages().await?;
    let settled = Settled::default();
    let take = async {
        while let Some(message) = messages.next().await {
            match message {
                Ok(message) => settled.take(message).await,
                // Heartbeats may be missed while there is no leader.
                Err(error) if !it.kill => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(())
    };
    let work = async { settled.finished(it, it.publish().await?).await };
    beside(work, take).await
}

async fn ordered(it: &Scene) -> Outcome<String> {
    let config = pull::OrderedConfig::default();
    let consumer: consumer::OrderedPullConsumer = it
        .far_js()
        .create_consumer_on_stream(config, &it.stream)
        .await?;
    let mut messages = consumer.messages().await?;
    let came = Mutex::new(vec![]);
    let take = async {
        while let Some(message) = messages.next().await {
            came.lock().unwrap().push(number(&message?.payload));
        }
        Ok(())
    };
    let work = async {
        let load = it.publish().await?;
        until(
            || came.lock().unwrap().len() >= load.count,
            "all that is acknowledged",
        )
        .await;
        assert_eq!(
            *came.lock().unwrap(),
            (0..load.count).collect::<Vec<_>>(),
            "in order"
        );
        Ok(load.to_string())
    };
    beside(work, take).await
}

async fn key_value(it: &Scene) -> Outcome<String> {
    let near = it.near_js().get_key_value(&it.name).await?;
    let far = it.far_js().get_key_value(&it.name).await?;
    for value in ["1", "2", "3"] {
        near.put("a.b", value.into()).await?;
    }
    let history: Vec<_> = far.history("a.b").await?.try_collect().await?;
    assert_eq!(
        history
            .iter()
            .map(|entry| entry.value.as_ref())
            .collect::<Vec<_>>(),
        [b"1", b"2", b"3"]
    );
    let earlier = far
        .entry_for_revision("a.b", 2)
        .await?
        .expect("an earlier revision");
    assert_eq!(earlier.value, "2");
    let error = far
        .create("a.b", "4".into())
        .await
        .expect_err("create of what is there");
    assert_eq!(error.kind(), kv::CreateErrorKind::AlreadyExists);
    let error = far
        .update("a.b", "4".into(), 2)
        .await
        .expect_err("update of an old revision");
    assert_eq!(error.kind(), kv::UpdateErrorKind::WrongLastRevision);
    let revision = far.update("a.b", "4".into(), 3).await?;
    near.put("gone", "".into()).await?;
    near.delete("gone").await?;
    let keys: Vec<String> = far.keys().await?.try_collect().await?;
    assert_eq!(keys, ["a.b"], "keys");
    assert_eq!(far.get("gone").await?, None, "what was deleted");

    let mut watcher = far.watch("count").await?;
    let watched = Mutex::new(vec![]);
    let watch = async {
        while let Some(entry) = watcher.next().await {
            match entry {
                Ok(entry) => watched.lock().unwrap().push(number(&entry.value)),
                Err(error) if !it.kill => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(())
    };
    // One more than the number that is next: 0 is what was there first.
    let last = Mutex::new(near.create("count", "0".into()).await?);
    let attempt = |index: usize| {
        let (near, last) = (&near, &last);
        async move {
            let (value, expected) = (index + 1, *last.lock().unwrap());
            let error = match near
                .update("count", value.to_string().into(), expected)
                .await
            {
                Ok(revision) => {
                    *last.lock().unwrap() = revision;
                    return Ok(());
                }
                Err(error) => error,
            };
            // What became of an attempt without an answer, the bucket knows.
            let found = near.entry("count").await?.expect("the key");
            *last.lock().unwrap() = found.revision;
            let now = number(&found.value);
            assert!(
                now == value || now == index,
                "{now} where {value} was to be set"
            );
            if now == value {
                Ok(())
            } else {
                Err(error.into())
            }
        }
    };
    let work = async {
        let load = it.throughout(BEFORE_KILL, AFTER_KILL, attempt).await?;
        until(
            || watched.lock().unwrap().last() == Some(&load.count),
            "the last one, watched",
        )
        .await;
        let found = watched.lock().unwrap().clone();
        assert!(
            found.windows(2).all(|pair| pair[0] < pair[1]),
            "watched in order: {found:?}"
        );
        assert_eq!(
            far.get("count").await?.expect("the key"),
            load.count.to_string(),
            "the last one"
        );
        let entry = far.entry("a.b").await?.expect("the key");
        assert_eq!(
            (entry.value.as_ref(), entry.revision),
            (b"4".as_ref(), revision),
            "what was there before"
        );
        Ok(load.to_string())
    };
    beside(work, watch).await
}

async fn objects(it: &Scene) -> Outcome<String> {
    let near = it.near_js().get_object_store(&it.name).await?;
    let far = it.far_js().get_object_store(&it.name).await?;
    let attempt = |number: usize| {
        let near = &near;
        async move {
            near.put(number.to_string().as_str(), &mut content(number).as_slice())
                .await?;
            Ok(())
        }
    };
    let load = it.throughout(2, 2, attempt).await?;
    let listed: Vec<_> = far.list().await?.try_collect().await?;
    for number in 0..load.count {
        let mut found = vec![];
        far.get(number.to_string())
            .await?
            .read_to_end(&mut found)
            .await?;
        assert!(found == content(number), "object {number} is the same");
        assert!(
            listed.iter().any(|info| info.name == number.to_string()),
            "object {number} is listed"
        );
    }
    far.delete("0").await?;
    let error = near
        .get("0")
        .await
        .err()
        .expect("a deleted object is not found");
    assert_eq!(error.kind(), object_store::GetErrorKind::NotFound);
    Ok(format!("{load}, {} MiB each", OBJECT_BYTES >> 20))
}

fn content(number: usize) -> Vec<u8> {
    (0..OBJECT_BYTES / 32)
        .flat_map(|block| Sha256::digest(format!("{number}/{block}")))
        .collect()
}

async fn services(it: &Scene) -> Outcome<String> {
    let service = it.near.service_builder().start("upper", "1.2.3").await?;
    let subject = format!("{}.upper", it.stream);
    let mut requests = service.endpoint(&subject).await?;
    let serve = async {
        while let Some(request) = requests.next().await {
            let answer = request.message.payload.to_ascii_uppercase();
            // Lost with the connection: it is asked again.
            let _ = request.respond(Ok(answer.into())).await;
        }
        Ok(())
    };
    let asked = |subject: String, question: String| async move {
        let answer = timeout(TIMEOUT, it.far.request(subject, question.into())).await??;
        Outcome::Ok(answer.payload)
    };
    let id = service.info().await.id;
    let work = async {
        let began = Instant::now();
        while let Err(error) = asked(format!("$SRV.PING.upper.{id}"), String::new()).await {
            if began.elapsed() > WAIT_MAX {
                return Err(error);
            }
            sleep(Duration::from_millis(20)).await;
        }
        let attempt = |number: usize| {
            let answer = asked(subject.clone(), format!("ask {number}"));
            async move {
                assert_eq!(answer.await?, format!("ASK {number}"), "answer");
                Ok(())
            }
        };
        let load = it.throughout(BEFORE_KILL, AFTER_KILL, attempt).await?;
        let mut about = Value::Null;
        for verb in ["PING", "INFO", "STATS"] {
            for subject in [
                format!("$SRV.{verb}"),
                format!("$SRV.{verb}.upper"),
                format!("$SRV.{verb}.upper.{id}"),
            ] {
                about = serde_json::from_slice(&asked(subject.clone(), String::new()).await?)?;
                let found = [&about["name"], &about["version"], &about["id"]];
                assert_eq!(found, ["upper", "1.2.3", &id], "{subject}");
            }
        }
        let count = about["endpoints"][0]["num_requests"]
            .as_u64()
            .expect("a count");
        assert!(count >= load.count as u64, "{count} requests are counted");
        Ok(load.to_string())
    };
    let detail = beside(work, serve).await?;
    service.stop().await?;
    Ok(detail)
}
