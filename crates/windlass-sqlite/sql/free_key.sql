-- ?1: seq of the chain's first job
update {prefix}job set key_held = 0 where seq = ?1
