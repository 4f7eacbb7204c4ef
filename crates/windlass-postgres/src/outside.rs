//! Completing jobs from outside a worker.

use windlass_core::command::{
    CompleteFromOutside, CompleteFromOutsideReply, Created, OutsideApplied, Ripple,
};
use windlass_core::{Result, Version, WorkerId};

use crate::provider::{Parameter, Provider};
use crate::reply::{Values, corrupt, put, ripple};
use crate::request::{Settlements, id};
use crate::store::{Call, Execute};

impl Execute for CompleteFromOutside {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<CompleteFromOutsideReply> {
        self.check_size()?;
        let invalid = self.check().err();
        let mut steps = Settlements::default();
        if invalid.is_none() {
            self.steps.iter().for_each(|step| steps.push_step(step));
        }
        let mut created: Vec<Option<Created>> = (0..steps.new_jobs.len()).map(|_| None).collect();
        // No job ever reaches a version outside the range of `i64`, so the largest one matches no job either.
        let version = i64::try_from(self.version.0).unwrap_or(i64::MAX);
        let parameters = [
            call.time(),
            id(self.request.as_uuid()),
            id(self.job.as_uuid()),
            Parameter::Number(Some(version)),
            Parameter::Flag(invalid.is_some()),
        ];
        let parameters = parameters.into_iter().chain(steps.parameters()).collect();
        let (mut reply, mut followed) = (None, Ripple::default());
        for row in call.run(&call.statements().outside, parameters).await? {
            let mut values = Values::from(row);
            match values.part.as_str() {
                "outside" => {
                    let kind = values.text()?;
                    reply = Some(match kind.as_str() {
                        "applied" => CompleteFromOutsideReply::Applied(OutsideApplied {
                            latest: values.summary()?,
                            displaced: values.maybe_id().map(WorkerId::from_uuid),
                            created: Vec::new(),
                            ripple: Ripple::default(),
                        }),
                        "already_applied" => CompleteFromOutsideReply::AlreadyApplied,
                        "changed" => CompleteFromOutsideReply::Changed {
                            status: values.enum_value()?,
                            version: Version(values.number()?),
                        },
                        "not_found" => CompleteFromOutsideReply::NotFound,
                        "busy" => CompleteFromOutsideReply::Busy,
                        _ => CompleteFromOutsideReply::Refused(values.refusal(invalid.clone())?),
                    });
                }
                "created" => put(&mut created, values.item_index()?, values.created()?)?,
                _ => ripple(&mut followed, &mut values)?,
            }
        }
        let mut reply = reply.ok_or_else(|| corrupt("no reply to a completion from outside"))?;
        if let CompleteFromOutsideReply::Applied(applied) = &mut reply {
            applied.created = created.into_iter().flatten().collect();
            applied.ripple = followed;
        }
        Ok(reply)
    }
}
