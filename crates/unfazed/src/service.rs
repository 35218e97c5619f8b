//! What the service manager (systemd, or whoever speaks its protocol) is told of the server: when it answers, how it goes, that it
//! is alive, that it ends.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use unfazed_host::service_manager::{News, ServiceManager};
use unfazed_server::events::Ready;
use unfazed_server::{Alive, Event};

use crate::output::Output;

/// Signs of life where the manager does not say how often it wants them. They are what gives a long start more time.
const SIGN_EVERY: Duration = Duration::from_secs(10);
/// What a start is given from each sign of life on. A start has no other limit: engines that load are watched by the front.
const START_TIME: Duration = Duration::from_secs(60);
/// Time for the end beside that of running requests: the engine's and the connections'.
const END_TIME: Duration = Duration::from_secs(15);

/// How long the end waits for the last news to be told.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// The manager, and a thread that tells it.
#[derive(Clone)]
pub(crate) struct Service {
    output: Output<Vec<News>>,
    story: Arc<Mutex<Story>>,
    every: Duration,
    watched: bool,
}

impl Service {
    /// The manager that started this program, if one did.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn find() -> io::Result<Option<Service>> {
        let Some(manager) = ServiceManager::find() else { return Ok(None) };
        let mut reachable = true;
        let output = Output::start("service", move |news: Vec<News>, _| match manager.tell(&news) {
            Err(error) if reachable => {
                tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told anything");
                reachable = false;
            }
            told => reachable |= told.is_ok(),
        })?;
        let watchdog = manager.watchdog();
        let service = Service {
            output,
            story: Arc::default(),
            // Half of what it allows, as sd_watchdog_enabled(3) recommends.
            every: watchdog.map_or(SIGN_EVERY, |limit| (limit / 2).min(SIGN_EVERY)),
            watched: watchdog.is_some(),
        };
        service.output.send(vec![News::Status("Opening the model".to_owned()), News::MoreTime(START_TIME)]);
        Ok(Some(service))
    }

    /// Tells what an event means for the service.
    pub(crate) fn hear(&self, event: &Event) {
        let news = self.with_story(|story| story.hear(event));
        if !news.is_empty() {
            self.output.send(news);
        }
    }

    /// Signs of life, for the server to give.
    pub(crate) fn alive(&self) -> Alive {
        let service = self.clone();
        let tell = move || {
            let news = service.with_story(|story| story.sign(service.watched));
            if !news.is_empty() {
                service.output.send(news);
            }
        };
        Alive { every: self.every, tell: Arc::new(tell) }
    }

    /// Tells why the server could not go on.
    pub(crate) fn failed(&self, line: &str) {
        self.output.send(vec![News::Status(format!("Failed: {line}"))]);
    }

    /// Waits until everything was told: a manager reads at once, on a machine that gets on.
    pub(crate) fn flush(&self) {
        self.output.flush_within(LAST_WAIT);
    }

    fn with_story<T>(&self, tell: impl FnOnce(&mut Story) -> T) -> T {
        tell(&mut self.story.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was heard so far, as far as a line of status needs it.
#[derive(Debug, Default)]
struct Story {
    /// Told last.
    status: String,
    /// What it serves and where, once it does.
    serving: Option<String>,
    /// Why no engine computes at the moment.
    stopped: Option<String>,
    /// What was given up, by ladder: what there was at first, and what there is.
    degraded: Vec<(&'static str, String, String)>,
    ending: bool,
}

impl Story {
    /// What is to be told of an event.
    fn hear(&mut self, event: &Event) -> Vec<News> {
        let mut news = Vec::new();
        match event {
            Event::Loading { model, done_bytes, total_bytes, .. } => {
                let percent = done_bytes.saturating_mul(100) / (*total_bytes).max(1);
                let gb = *total_bytes as f64 / 1e9;
                // Once it was ready, the line of the engine that stopped stays.
                if self.serving.is_none() {
                    news.extend(self.say(format!("Loading {model}: {percent} % of {gb:.1} GB")));
                }
                return news;
            }
            Event::Waiting { what, ms } if self.serving.is_none() => {
                return self
                    .say(format!("Loading waits for {what} since {} s", ms / 1000))
                    .into_iter()
                    .collect();
            }
            Event::Ready(ready) => {
                self.serving = Some(serving(ready));
                self.stopped = None;
                news.push(News::Ready);
            }
            Event::EngineExit { message, .. } => self.stopped = Some(message.clone()),
            Event::EngineReady { .. } => self.stopped = None,
            Event::Degraded { ladder, from, to, .. } => self.step(ladder, from, to),
            Event::Recovered { ladder: Some(ladder), from: Some(from), to: Some(to), .. } => {
                self.step(ladder, from, to);
            }
            Event::Draining { requests, limit_ms } => {
                self.ending = true;
                news.push(News::Stopping);
                news.push(News::MoreTime(Duration::from_millis(*limit_ms).saturating_add(END_TIME)));
                news.extend(self.say(format!("Finishing {requests} running requests")));
                return news;
            }
            Event::Shutdown { unfinished_requests } => {
                self.ending = true;
                let line = format!("Ended; {unfinished_requests} requests were left unfinished");
                return self.say(line).into_iter().collect();
            }
            _ => return news,
        }
        let line = self.line();
        news.extend(self.say(line));
        news
    }

    /// What is to be told with a sign of life.
    fn sign(&self, watched: bool) -> Vec<News> {
        let starting = (self.serving.is_none() && !self.ending).then_some(News::MoreTime(START_TIME));
        watched.then_some(News::Alive).into_iter().chain(starting).collect()
    }

    /// Something was given up or taken up again.
    fn step(&mut self, ladder: &'static str, from: &str, to: &str) {
        match self.degraded.iter_mut().find(|(name, ..)| *name == ladder) {
            Some((_, _, now)) => to.clone_into(now),
            None => self.degraded.push((ladder, from.to_owned(), to.to_owned())),
        }
        self.degraded.retain(|(_, full, now)| full != now);
    }

    fn line(&self) -> String {
        let mut line = match (&self.serving, &self.stopped) {
            (Some(serving), None) => serving.clone(),
            (Some(serving), Some(why)) => format!("{serving}; another engine is started ({why})"),
            (None, Some(why)) => format!("Loading; another engine is started ({why})"),
            (None, None) => "Loading".to_owned(),
        };
        for (ladder, full, now) in &self.degraded {
            line += &format!("; degraded, {ladder}: {now} instead of {full}");
        }
        line
    }

    /// A line of status, unless it is the last one.
    fn say(&mut self, line: String) -> Option<News> {
        if line == self.status || (self.ending && line.starts_with("Serving")) {
            return None;
        }
        self.status.clone_from(&line);
        Some(News::Status(line))
    }
}

fn serving(ready: &Ready) -> String {
    format!("Serving {} on {}", ready.model, crate::report::url(ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loading(done_bytes: u64) -> Event {
        let model = "a model".to_owned();
        Event::Loading { model, done_bytes, total_bytes: 4_000_000_000, mb_per_s: 1.0, eta_s: None }
    }

    fn exit(message: &str) -> Event {
        Event::EngineExit {
            code: None,
            signal: Some(9),
            cause: "signal",
            message: message.to_owned(),
            requests: 1,
            failed_requests: 0,
        }
    }

    fn status(line: &str) -> News {
        News::Status(line.to_owned())
    }

    fn serving_story() -> Story {
        Story { serving: Some("Serving a model".to_owned()), ..Story::default() }
    }

    #[test]
    fn a_long_load_is_told_by_the_per_cent_and_each_sign_of_life_gives_it_more_time() {
        let mut story = Story::default();
        assert_eq!(story.hear(&loading(1_000_000_000)), [status("Loading a model: 25 % of 4.0 GB")]);
        assert_eq!(story.hear(&loading(1_000_000_001)), []);
        assert_eq!(story.sign(true), [News::Alive, News::MoreTime(START_TIME)]);
        assert_eq!(story.sign(false), [News::MoreTime(START_TIME)]);
        story.serving = Some("Serving".to_owned());
        assert_eq!((story.sign(true), story.sign(false)), (vec![News::Alive], vec![]));
    }

    #[test]
    fn an_engine_that_is_being_restarted_is_a_line_of_status_and_no_end() {
        let mut story = serving_story();
        let line = "Serving a model; another engine is started (signal 9)";
        assert_eq!(story.hear(&exit("signal 9")), [status(line)]);
        assert_eq!(story.hear(&loading(1)), [], "what the next engine loads");
        assert_eq!(story.sign(true), [News::Alive]);
        let ready =
            Event::EngineReady { load_ms: 1.0, read_bytes: 0, kept_bytes: 1, engine: "cpu", gpu_layers: 0 };
        assert_eq!(story.hear(&ready), [status("Serving a model")]);
    }

    #[test]
    fn what_was_given_up_is_told_until_all_of_it_is_back() {
        let mut story = serving_story();
        let down = |from: &str, to: &str| Event::Degraded {
            ladder: "memory",
            from: from.to_owned(),
            to: to.to_owned(),
            class: "out_of_memory",
        };
        let up = |from: &str, to: &str| Event::Recovered {
            class: None,
            action: None,
            attempt: None,
            cost_ms: None,
            ladder: Some("memory"),
            from: Some(from.to_owned()),
            to: Some(to.to_owned()),
        };
        let degraded =
            |now: &str| [status(&format!("Serving a model; degraded, memory: {now} instead of 8"))];
        assert_eq!(story.hear(&down("8", "4")), degraded("4"));
        assert_eq!(story.hear(&down("4", "2")), degraded("2"));
        assert_eq!(story.hear(&up("2", "4")), degraded("4"));
        assert_eq!(story.hear(&up("4", "8")), [status("Serving a model")]);
    }

    #[test]
    fn the_end_is_told_with_the_time_that_running_requests_have() {
        let mut story = serving_story();
        let time = News::MoreTime(Duration::from_secs(30) + END_TIME);
        let expected = [News::Stopping, time, status("Finishing 2 running requests")];
        assert_eq!(story.hear(&Event::Draining { requests: 2, limit_ms: 30_000 }), expected);
        assert_eq!(
            story.hear(&Event::EngineReady {
                load_ms: 1.0,
                read_bytes: 0,
                kept_bytes: 1,
                engine: "cpu",
                gpu_layers: 0
            }),
            []
        );
        let ended = story.hear(&Event::Shutdown { unfinished_requests: 1 });
        assert_eq!(ended, [status("Ended; 1 requests were left unfinished")]);
    }

    #[test]
    fn an_end_before_the_model_answered_asks_for_no_more_time_to_start() {
        let mut story = Story::default();
        story.hear(&Event::Draining { requests: 0, limit_ms: 1 });
        assert_eq!(story.sign(true), [News::Alive]);
    }
}
