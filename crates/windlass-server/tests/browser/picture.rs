//! The picture in the README and in the documentation.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, interval};
use windlass_core::{BoxError, Client, Ctx, Entry, Job, MemoryStore, Store, Worker};
use windlass_server::Role;

use crate::site::Site;

/// How long the shop works before its picture is taken, so that the charts have something to show.
const WORK: Duration = Duration::from_secs(75);

macro_rules! jobs {
    ($($job:ident, $name:literal, $handler:ident, $ms:literal;)*) => {
        $(
            #[derive(Serialize, Deserialize)]
            struct $job(u64);

            impl Job for $job {
                type Output = u64;
                type Next = ();
                type Blockers = ();
                const NAME: &'static str = $name;
            }

            impl Entry for $job {}

            async fn $handler(job: Ctx<$job>) -> Result<u64, BoxError> {
                let number = job.input().0;
                tokio::time::sleep(Duration::from_millis($ms + number % 7 * $ms / 4)).await; // tidy: simulated work
                if number % 97 == 0 { Err(windlass_core::Fatal::new("the card has expired").into()) } else { Ok(number) }
            }
        )*
    };
}

jobs! {
    Resize, "resize-photo", resize, 40;
    Mail, "send-mail", mail, 25;
    Invoice, "create-invoice", invoice, 70;
    Index, "update-index", index, 15;
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/images/dashboard.png")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_picture_in_the_documentation_is_small() {
    if std::env::var_os("WINDLASS_UPDATE").is_some() {
        take().await;
    }
    let picture = std::fs::read(path()).expect("run this test with WINDLASS_UPDATE=1 to take the picture");
    assert!(picture.starts_with(b"\x89PNG"));
    assert!(picture.len() < 150_000, "{} bytes", picture.len());
}

async fn take() {
    let client = Client::new(MemoryStore::new());
    let site =
        Site::with(client.clone().into_dyn(), |server| server.sample_interval(Duration::from_secs(1))).await;
    let worker = Worker::new(&client).concurrency(10).name("shop");
    let shop = worker.handle(resize).handle(mail).start().await.unwrap();
    let worker = Worker::new(&client).concurrency(6).name("office");
    let office = worker.handle(invoice).handle(index).start().await.unwrap();
    let browser = site.visit(Role::Operate, "/").await;
    let blocker = site.chain(json!({"type": "await-approval", "delay_ms": 3_600_000})).await;
    site.chain(json!({"type": "send-mail", "input": 1, "blocked_by": [blocker]})).await;
    let picture = async {
        tokio::time::sleep(WORK).await; // tidy: the charts show this time
        browser.prefer("light").await;
        browser.picture(1_240).await
    };
    let picture = tokio::select! {
        picture = picture => picture,
        () = work(&client) => Vec::new(),
    };
    std::fs::create_dir_all(path().parent().unwrap()).unwrap();
    std::fs::write(path(), picture).unwrap();
    browser.close().await;
    shop.stop(Duration::from_secs(10)).await;
    office.stop(Duration::from_secs(10)).await;
}

/// Starts jobs in waves, forever.
async fn work<S: Store>(client: &Client<S>) {
    let (began_at, mut ticks, mut number) = (Instant::now(), interval(Duration::from_millis(50)), 0);
    loop {
        ticks.tick().await;
        let wave = (began_at.elapsed().as_secs_f64() / 9.0).sin() + 1.3;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
        for _ in 0..(wave * 4.5) as u32 {
            number += 1;
            match number % 5 {
                0 => drop(client.start(Invoice(number)).await.unwrap()),
                1 => drop(client.start(Index(number)).await.unwrap()),
                2 => drop(client.start(Mail(number)).await.unwrap()),
                _ => drop(client.start(Resize(number)).await.unwrap()),
            }
        }
    }
}
