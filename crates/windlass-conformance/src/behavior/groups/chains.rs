//! Chains of consecutive jobs.

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "chains.linear",
            "A chain runs through its steps and returns its output.",
            ["BS-024", "BS-164"],
            linear
        ),
        behavior!(
            "chains.branch",
            "A chain can continue with one of several types, each with its own input type.",
            ["BS-025", "BS-026"],
            branch
        ),
        behavior!(
            "chains.loop",
            "A job type can continue with itself until it returns an output.",
            ["BS-027"],
            looping
        ),
        behavior!("chains.jump", "A chain can return to an earlier type.", ["BS-028"], jump),
        behavior!(
            "chains.shared_tail",
            "Several chains can share a final type, whose output becomes the output of each chain.",
            ["BS-029"],
            shared_tail
        ),
        behavior!(
            "chains.independent",
            "A chain that a handler starts is independent of the handler's chain.",
            ["BS-030", "BS-035"],
            independent
        ),
    ]
}

job!(Fetch { number: u32 } -> u32, then(Double));
job!(Double { number: u32 } -> u32, then(Keep));
job!(Keep { number: u32, label: String } -> u32);

async fn linear<S: Store>(scene: Scene<S>) {
    async fn fetch(job: Ctx<Fetch>) -> Result<Next<Fetch>> {
        Ok(Next::then(Double { number: job.input().number + 1 }))
    }
    async fn double(job: Ctx<Double>) -> Result<Next<Double>> {
        Ok(Next::then(Keep { number: job.input().number * 2, label: "doubled".into() }))
    }
    async fn keep(job: Ctx<Keep>) -> Result<u32> {
        assert_eq!((job.input().label.as_str(), job.job().index), ("doubled", 2));
        Ok(job.input().number)
    }
    let worker = scene.worker().handle(fetch).handle(double).handle(keep).start().await.unwrap();
    let chain = scene.client.start(Fetch { number: 20 }).await.unwrap();
    assert_eq!(scene.output(chain).await, 42);
    let record = scene.client.chain(chain).await.unwrap().unwrap();
    assert_eq!((record.first.status, record.status()), (Status::Completed, Status::Completed));
    assert_eq!((record.first.output, record.latest.chain_type.as_str()), (None, "Fetch"));
    scene.stop([worker]).await;
}

job!(Order { total: u32 } -> String, then(Invoice, Gift));
job!(Invoice { amount: u32 } -> String);
job!(Gift { to: String, wrapped: bool } -> String);

async fn branch<S: Store>(scene: Scene<S>) {
    async fn order(job: Ctx<Order>) -> Result<Next<Order>> {
        Ok(match job.input().total {
            0 => Next::then(Gift { to: "Ada".into(), wrapped: true }),
            amount => Next::then(Invoice { amount }),
        })
    }
    async fn invoice(job: Ctx<Invoice>) -> Result<String> {
        Ok(format!("invoice over {}", job.input().amount))
    }
    async fn gift(job: Ctx<Gift>) -> Result<String> {
        Ok(format!("gift to {}, wrapped: {}", job.input().to, job.input().wrapped))
    }
    let worker = scene.worker().handle(order).handle(invoice).handle(gift).start().await.unwrap();
    let paid = scene.client.start(Order { total: 3 }).await.unwrap();
    let free = scene.client.start(Order { total: 0 }).await.unwrap();
    assert_eq!(scene.output(paid).await, "invoice over 3");
    assert_eq!(scene.output(free).await, "gift to Ada, wrapped: true");
    scene.stop([worker]).await;
}

job!(Countdown { left: u32 } -> u32, then(Countdown));

async fn looping<S: Store>(scene: Scene<S>) {
    async fn count(job: Ctx<Countdown>) -> Result<Next<Countdown>> {
        Ok(match job.input().left {
            0 => Next::done(job.job().index),
            left => Next::then(Countdown { left: left - 1 }),
        })
    }
    let worker = scene.worker().handle(count).start().await.unwrap();
    let chain = scene.client.start(Countdown { left: 5 }).await.unwrap();
    assert_eq!(scene.output(chain).await, 5, "the sixth job of the chain ends it");
    scene.stop([worker]).await;
}

job!(Draft { version: u32 } -> u32, then(Review));
job!(Review { version: u32 } -> u32, then(Draft, Publish));
job!(Publish { version: u32 } -> u32);

async fn jump<S: Store>(scene: Scene<S>) {
    async fn draft(job: Ctx<Draft>) -> Result<Next<Draft>> {
        Ok(Next::then(Review { version: job.input().version }))
    }
    async fn review(job: Ctx<Review>) -> Result<Next<Review>> {
        let version = job.input().version;
        Ok(if version < 3 {
            Next::then(Draft { version: version + 1 })
        } else {
            Next::then(Publish { version })
        })
    }
    async fn publish(job: Ctx<Publish>) -> Result<u32> {
        Ok(job.input().version * 100 + job.job().index)
    }
    let worker = scene.worker().handle(draft).handle(review).handle(publish).start().await.unwrap();
    let chain = scene.client.start(Draft { version: 1 }).await.unwrap();
    assert_eq!(scene.output(chain).await, 306, "three drafts, three reviews, one publication");
    scene.stop([worker]).await;
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Receipt(String);

impl From<String> for Receipt {
    fn from(text: String) -> Self {
        Self(text)
    }
}

job!(ByMail { to: String } -> Receipt, then(Deliver));
job!(ByHand { to: String } -> String, then(Deliver));
job!(Deliver { to: String } -> String);

async fn shared_tail<S: Store>(scene: Scene<S>) {
    async fn mail(job: Ctx<ByMail>) -> Result<Next<ByMail>> {
        Ok(Next::then(Deliver { to: job.input().to.clone() }))
    }
    async fn hand(job: Ctx<ByHand>) -> Result<Next<ByHand>> {
        Ok(Next::then(Deliver { to: job.input().to.clone() }))
    }
    async fn deliver(job: Ctx<Deliver>) -> Result<String> {
        Ok(format!("{} {}", job.job().chain_type, job.input().to))
    }
    let worker = scene.worker().handle(mail).handle(hand).handle(deliver).start().await.unwrap();
    let mailed = scene.client.start(ByMail { to: "Ada".into() }).await.unwrap();
    let handed = scene.client.start(ByHand { to: "Bob".into() }).await.unwrap();
    let alone = scene.client.start(Deliver { to: "Cid".into() }).await.unwrap();
    assert_eq!(scene.output(mailed).await, Receipt("ByMail Ada".into()));
    assert_eq!(scene.output(handed).await, "ByHand Bob");
    assert_eq!(scene.output(alone).await, "Deliver Cid");
    scene.stop([worker]).await;
}

job!(Parent {} -> ());
job!(Child { number: u32 } -> u32);

async fn independent<S: Store>(scene: Scene<S>) {
    let children = Arc::new(Mutex::new(Vec::new()));
    let (client, started) = (scene.client.clone(), Arc::clone(&children));
    let parent = move |_: Ctx<Parent>| {
        let (client, started) = (client.clone(), Arc::clone(&started));
        async move {
            let chains = client.start_many((0..2).map(|number| Child { number })).await?;
            started.lock().unwrap().extend(chains);
            Ok::<_, BoxError>(())
        }
    };
    async fn child(job: Ctx<Child>) -> Result<u32> {
        Ok(job.input().number)
    }
    let worker = scene.worker().handle(parent).handle(child).start().await.unwrap();
    let chain = scene.client.start(Parent {}).await.unwrap();
    scene.output(chain).await;
    let children = children.lock().unwrap().clone();
    assert_eq!(children.len(), 2);
    for (number, child) in (0..).zip(children) {
        assert_eq!(scene.output(child).await, number);
        let job = scene.job(child).await;
        assert_eq!((job.id, job.index, job.chain_type.as_str()), (child.id().first_job(), 0, "Child"));
        assert!(child.id() != chain.id() && job.blockers.is_empty());
    }
    scene.stop([worker]).await;
}
