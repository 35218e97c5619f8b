//! A client's way with one request: drawn from the seed, gone, and judged.

use std::time::Duration;

use anyhow::Result;

use super::answer::Answer;
use super::board::Board;
use super::draw::Draw;
use super::openai::OpenAi;
use super::raw::{Cut, Http};
use super::request::Request;
use super::verdict;

/// Longest wait for a whole answer: faults may hold it up for long, and one that never comes must end a run.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a client does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Whole,
    Stream,
    /// It leaves the stream after so many events.
    Leave(u64),
    /// It asks for a whole answer and leaves once all clients have received so many tokens more.
    Abandon(u64),
    /// It cuts a resumable stream and continues it.
    Cut(Vec<Cut>),
}

/// What a client asks and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    /// In the pool.
    pub(super) request: usize,
    pub(super) manner: Manner,
}

impl Visit {
    /// The visit of a client's round.
    pub(super) fn draw(seed: u64, client: u64, round: u64, pool: usize, openai: bool) -> Visit {
        let draw = &mut Draw::new(seed, &format!("client {client}"), round);
        let request = draw.within(0..=pool as u64 - 1) as usize;
        let manner = match draw.within(0..=99) {
            0..=24 => Manner::Whole,
            25..=54 => Manner::Stream,
            55..=69 => Manner::Leave(draw.within(0..=25)),
            70..=74 if !openai => Manner::Abandon(draw.within(1..=200)),
            75..=99 if !openai => {
                let cuts = 0..=draw.within(0..=3);
                let cut = |_| Cut { events: draw.within(0..=25), away_ms: draw.within(0..=1500) };
                Manner::Cut(cuts.map(cut).collect())
            }
            _ => Manner::Stream,
        };
        Visit { request, manner }
    }

    /// Goes there and says what was got.
    pub(super) async fn go(
        &self,
        request: &Request,
        http: &Http,
        openai: Option<&OpenAi>,
        board: &Board,
    ) -> Result<Answer> {
        let going = async {
            match openai {
                None => self.go_by_http(request, http, board).await,
                Some(openai) => {
                    let leave = if let Manner::Leave(after) = self.manner { Some(after) } else { None };
                    let body = request.body(self.manner != Manner::Whole);
                    openai.ask(request.path, &body, leave, || board.receive()).await
                }
            }
        };
        match tokio::time::timeout(PATIENCE, going).await {
            Ok(answer) => answer,
            Err(_) => anyhow::bail!("no answer within {PATIENCE:?}"),
        }
    }

    async fn go_by_http(&self, request: &Request, http: &Http, board: &Board) -> Result<Answer> {
        let path = request.path;
        let receive = || board.receive();
        match &self.manner {
            Manner::Whole => http.whole(path, &request.body(false)).await,
            Manner::Stream => http.stream(path, &request.body(true), None, receive).await,
            Manner::Leave(after) => http.stream(path, &request.body(true), Some(*after), receive).await,
            Manner::Cut(cuts) => http.resumable(path, &request.body(true), cuts, receive).await,
            Manner::Abandon(tokens) => {
                let (mut received, body) = (board.watch(), request.body(false));
                let until = board.received().tokens + tokens;
                tokio::select! {
                    answer = http.whole(path, &body) => answer,
                    _ = received.wait_for(|received| received.tokens >= until) => Ok(Answer::default()),
                }
            }
        }
    }

    /// Whether the client meant to leave before the end.
    pub(super) fn leaves(&self) -> bool {
        matches!(self.manner, Manner::Leave(_) | Manner::Abandon(_))
    }

    /// Judges what was got by what an undisturbed server had answered.
    pub(super) fn judge(&self, expected: &Answer, got: &Answer) -> Result<(), String> {
        // One who meant to leave may have seen the end before.
        if self.leaves() && got.ends == 0 {
            verdict::beginning(expected, got)
        } else {
            verdict::whole(expected, got)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_visits_and_clients_do_all_that_clients_may() {
        let visits =
            |seed, openai| (0..200).map(|round| Visit::draw(seed, 7, round, 48, openai)).collect::<Vec<_>>();
        assert_eq!(visits(1, false), visits(1, false));
        assert_ne!(visits(1, false), visits(2, false));
        let manners: [fn(&Manner) -> bool; 5] = [
            |manner| *manner == Manner::Whole,
            |manner| *manner == Manner::Stream,
            |manner| matches!(manner, Manner::Leave(_)),
            |manner| matches!(manner, Manner::Abandon(_)),
            |manner| matches!(manner, Manner::Cut(_)),
        ];
        for (number, manner) in manners.iter().enumerate() {
            assert!(visits(1, false).iter().any(|visit| manner(&visit.manner)), "manner {number}");
            assert_eq!(
                visits(1, true).iter().any(|visit| manner(&visit.manner)),
                number < 3,
                "manner {number}"
            );
        }
    }

    #[test]
    fn one_who_leaves_may_have_a_beginning_only_and_others_may_not() {
        let visit = |manner| Visit { request: 0, manner };
        let chunk = |finish_reason| {
            let choice = serde_json::json!({"index": 0, "text": "Once", "finish_reason": finish_reason});
            serde_json::json!({ "choices": [choice] })
        };
        let mut expected = Answer::default();
        expected.add(&chunk(Some("stop")));
        expected.end();
        let mut got = Answer::default();
        got.add(&chunk(None));
        assert_eq!(visit(Manner::Leave(1)).judge(&expected, &got), Ok(()));
        for manner in [Manner::Stream, Manner::Whole, Manner::Cut(Vec::new())] {
            let how = visit(manner).judge(&expected, &got).unwrap_err();
            assert_eq!(how, "the final event is missing");
        }
    }
}
