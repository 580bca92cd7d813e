"""Statements that attack a database, the machine or the verifier; `{0}` stands for a folder."""

from __future__ import annotations

import random

COUNTED = "with recursive c(x) as (select 1 union all select x + 1 from c)"
REFUSED = [
    "attach '{0}/other.sqlite' as other", "detach main", "vacuum into '{0}/copy.sqlite'", "vacuum",
    "select load_extension('{0}/x.so')", "select readfile('/etc/passwd')", "select writefile('{0}/x', 'x')",
    "select fts3_tokenizer('simple')", "pragma writable_schema = 1", "pragma journal_mode = wal",
    "pragma query_only = off", "pragma hard_heap_limit = 0", "pragma temp_store_directory = '{0}'",
    "select * from pragma_database_list",
    "create table t (a)", "create temp table t as select 1", "create virtual table t using fts5(a)",
    "drop table Artist", "create trigger t after update on Artist begin select 1; end",
    "alter table Artist rename to Other",
    "analyze", "begin", "savepoint s", "rollback", "insert into sqlite_master values (1, 2, 3, 4, 5)",
    "update sqlite_master set sql = ''", "select random()", "select randomblob(4)", "select current_timestamp",
    "select 1; select 2", "selec", "select \0", "select " + "(" * 3000 + "1" + ")" * 3000,
    "select " + ", ".join("1" * 2100), "select '" + "x" * 30_000 + "'",
]  # fmt: skip
STOPPED = {
    f"{COUNTED} select count(*) from c": "instructions",
    f"{COUNTED} select count(*) from (select x from c limit 90000) a, (select x from c limit 90000)": "instructions",
    "select count(*) from Artist a, Artist b, Artist c, Artist d, Artist e, Artist f, Artist g": "instructions",
    f"{COUNTED} select sum(instr(hex(zeroblob(49000)), hex(zeroblob(24000)) || '1')) from c": "instructions",
    f"{COUNTED} select group_concat(hex(zeroblob(9000))) from c": "(instructions|bytes)",
    f"{COUNTED} select x, zeroblob(90000) z from c order by z, x desc": "memory",
    "select zeroblob(1000000000)": "bytes",
    f"{COUNTED} select {', '.join(['zeroblob(90000)'] * 200)} from c": "MiB",
    "select replace(hex(zeroblob(40000)), '0', 'aaaaaaaaaa')": "bytes",
}
WRITES = ["insert into Artist values (99, 'x')", "update Artist set Name = 'x'", "delete from Artist"]
READS = [
    "select readfile('/proc/self/environ')", "select readfile('{0}/canary.txt')", "attach '{0}/canary.txt' as c",
    "attach '/proc/self/environ' as c", "select * from pragma_database_list", "select * from sqlite_dbpage",
    "select edit('x', 'cat /proc/self/environ')", "select load_extension('/usr/lib/x86_64-linux-gnu/libc.so.6')",
    "pragma database_list", "pragma temp_store_directory", "select sqlite_compileoption_get(0)",
]  # fmt: skip


def statement(rng: random.Random, folder: str) -> str:
    """Return an attack, drawn at random, perhaps in another dress."""
    drawn = rng.choice([*REFUSED, *STOPPED, *WRITES, *READS]).replace("{0}", folder)
    dress = rng.choice((
        "{}", "{}", "{}", "/* read only */ {}", "-- select\n{}", "explain {}", "explain query plan {}", "{};", ";{}",
        "select 1; {}", "with q as (select 1) {}", "select * from ({})", "select exists ({})", "{} returning *",
        "\ufeff{}", "{}\0", "values (1) union all {}",
    ))  # fmt: skip
    return str(dress.format(drawn) if rng.random() < 0.9 else dress.format(drawn).swapcase())
