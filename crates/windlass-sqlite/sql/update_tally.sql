-- How many jobs more or less have a type and status.
-- ?1: type; ?2: status; ?3: change
insert into {prefix}tally (type, status, jobs) values (?1, ?2, ?3)
on conflict do update set jobs = jobs + excluded.jobs
