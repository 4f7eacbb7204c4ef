insert into {prefix}blocker (job, position, chain, resolved, waiting, eager, trace) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
