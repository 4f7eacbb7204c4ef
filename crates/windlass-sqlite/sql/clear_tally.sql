-- Removes a count of zero, unless jobs have ended with this status: their number is kept.
-- ?1: type; ?2: status
delete from {prefix}tally where type = ?1 and status = ?2 and jobs = 0 and former = 0
