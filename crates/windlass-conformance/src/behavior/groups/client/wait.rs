//! Waiting for the outputs of chains.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use windlass_core::{Chain, ChainId, ErrorKind};

use super::super::prelude::*;
use super::DELETE;
use crate::behavior::scene::POLL;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "wait.completed",
            "A wait for a completed chain returns immediately.",
            ["BS-155"],
            completed
        ),
        behavior!(
            "wait.early",
            "A wait returns as soon as its chain closes, before its timeout.",
            ["BS-156"],
            early
        ),
        behavior!(
            "wait.called_off",
            "A cancelled wait returns the same kind of error as a timeout, and the chain continues.",
            ["BS-157"],
            called_off
        ),
        behavior!(
            "wait.timeout",
            "A wait that times out returns an error, and the chain continues.",
            ["BS-158"],
            timeout
        ),
        behavior!(
            "wait.unknown",
            "A wait for a chain that is not stored fails immediately.",
            ["BS-159"],
            unknown
        ),
        behavior!(
            "wait.failed",
            "A wait for a chain that fails returns the chain's error.",
            ["BS-155"],
            failed
        ),
        behavior!("wait.deleted", "A wait ends when its chain is deleted.", ["BS-159"], [DELETE], deleted),
    ]
}

job!(Boil { eggs: u32 } -> u32);

/// A timeout or poll interval longer than the deadline of a case: a wait that depends on it fails the case.
const NEVER: Duration = Duration::from_secs(3_600);

async fn boil(job: Ctx<Boil>) -> Result<Next<Boil>> {
    Ok(match job.input().eggs {
        0 => Next::fail("there are no eggs"),
        eggs => Next::done(eggs),
    })
}

async fn completed<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(boil).start().await.unwrap();
    let chain = scene.client.start(Boil { eggs: 2 }).await.unwrap();
    scene.output(chain).await;
    scene.stop([worker]).await;
    let wait = scene.other.wait(chain).poll(NEVER).timeout(NEVER);
    assert_eq!(scene.soon("the wait ends", wait.into_future()).await.unwrap(), 2);
    // A wait with a zero timeout still queries once. A slow store may not reply in time, so try again.
    let looked = async {
        loop {
            match scene.other.wait(chain).timeout(Duration::ZERO).await {
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                output => return output,
            }
        }
    };
    assert_eq!(scene.soon("a query is answered", looked).await.unwrap(), 2);
}

async fn early<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Boil { eggs: 2 }).await.unwrap();
    let wait = scene.other.wait(chain).poll(POLL).timeout(NEVER).into_future();
    let worker = async { scene.worker().handle(boil).start().await.unwrap() };
    let (output, worker) = scene.soon("the wait ends", async { tokio::join!(wait, worker) }).await;
    assert_eq!(output.unwrap(), 2);
    scene.stop([worker]).await;
}

/// Asserts that a wait that timed out did not affect the chain.
async fn assert_goes_on<S: Store>(scene: &Scene<S>, chain: Chain<Boil>, error: windlass_core::Error) {
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains(&chain.id().to_string()), "{error}");
    let worker = scene.worker().handle(boil).start().await.unwrap();
    assert_eq!(scene.output(chain).await, 2);
    scene.stop([worker]).await;
}

async fn called_off<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Boil { eggs: 2 }).await.unwrap();
    let token = CancellationToken::new();
    let wait = scene.client.wait(chain).timeout(NEVER).cancelled_by(token.clone()).into_future();
    let call_off = async { token.cancel() };
    let ended = scene.soon("the wait ends", async { tokio::join!(wait, call_off).0 }).await;
    assert_goes_on(&scene, chain, ended.unwrap_err()).await;
}

async fn timeout<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Boil { eggs: 2 }).await.unwrap();
    let wait = scene.client.wait(chain).poll(POLL).timeout(Duration::from_millis(60));
    let ended = scene.soon("the wait ends", wait.into_future()).await;
    assert_goes_on(&scene, chain, ended.unwrap_err()).await;
}

async fn unknown<S: Store>(scene: Scene<S>) {
    let wait = scene.client.wait(Chain::<Boil>::from_id(ChainId::new())).poll(NEVER).timeout(NEVER);
    let error = scene.soon("the wait ends", wait.into_future()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

async fn failed<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(boil).start().await.unwrap();
    let chain = scene.client.start(Boil { eggs: 0 }).await.unwrap();
    let error = scene.result(chain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ChainFailed);
    assert_eq!(error.job_error().map(windlass_core::ErrorText::as_str), Some("there are no eggs"));
    scene.stop([worker]).await;
}

async fn deleted<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Boil { eggs: 2 }).await.unwrap();
    let wait = scene.other.wait(chain).poll(POLL).timeout(NEVER).into_future();
    let delete = scene.client.delete(vec![chain.into()]);
    let (ended, reply) = scene.soon("the wait ends", async { tokio::join!(wait, delete) }).await;
    reply.unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::NotFound);
}
