insert into {prefix}job ({columns})
values ({parameters})
