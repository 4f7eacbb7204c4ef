-- How many jobs of a type no longer have the status with which they ended.
-- ?1: type
select status, former from {prefix}tally where type = ?1 and former > 0
