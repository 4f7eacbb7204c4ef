-- Removes a count of zero, so that types that are no longer used leave nothing behind.
-- ?1: type; ?2: status
delete from {prefix}tally where type = ?1 and status = ?2 and jobs = 0
