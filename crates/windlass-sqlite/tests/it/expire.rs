//! Expiry of jobs whose retention is over.

use windlass_core::command::{Expire, NextJob, Outcome, Settle, Settlement};
use windlass_core::{JobId, Millis, Store};

use crate::{File, new_chain, start, take};

#[tokio::test]
async fn inner_jobs_are_removed_oldest_first_up_to_the_first_that_is_kept() {
    let file = File::new();
    let store = file.open().await;
    start(&store, vec![new_chain()]).await;
    for _ in 0..5 {
        let held = take(&store, 1).await.remove(0).job;
        let next = NextJob { id: JobId::new(), job: new_chain().job };
        let outcome = Outcome::Continue { next, create: Vec::new() };
        let settlement = Settlement { job: held.id, fence: held.fence, outcome };
        store.settle(Settle { settlements: vec![settlement] }).await.unwrap();
    }
    let mut beside = file.connect().await;
    // Simulates a clock that was set back after the job at position 3 closed.
    let later = "update windlass_job set closed_at = closed_at + 1000 where position = 3";
    sqlx::query(later).execute(&mut beside).await.unwrap();
    let trim_at: i64 = sqlx::query_scalar("select trim_at from windlass_job where position = 0")
        .fetch_one(&mut beside)
        .await
        .unwrap();
    file.clock.set(windlass_core::Timestamp::from_millis(trim_at).unwrap());
    let expire = async || store.expire(Expire { max: 100 }).await.unwrap();
    let reply = expire().await;
    assert_eq!((reply.jobs, reply.more), (2, false));
    file.clock.advance(Millis::new(999).unwrap());
    assert_eq!(expire().await.jobs, 0);
    file.clock.advance(Millis::new(1).unwrap());
    assert_eq!(expire().await.jobs, 2);
}
